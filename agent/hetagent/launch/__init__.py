"""How workers are started: one module per way; kinds.py chooses."""
