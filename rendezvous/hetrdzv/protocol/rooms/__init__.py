"""The values of optional features, a module each; the others know them by a field or a member of a union."""
