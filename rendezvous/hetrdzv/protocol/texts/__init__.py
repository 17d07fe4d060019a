"""Texts with a meaning: ids, addresses, values as people type them."""
