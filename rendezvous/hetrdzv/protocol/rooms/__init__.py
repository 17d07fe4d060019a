"""What optional features say and are told: a module for each."""
