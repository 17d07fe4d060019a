"""hetagent: what runs on every node of a hetrdzv job."""
