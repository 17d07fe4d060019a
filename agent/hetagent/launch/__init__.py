"""How workers are started."""
