"""Which nodes are alive: when each was heard, its lease, and what the server itself missed."""
