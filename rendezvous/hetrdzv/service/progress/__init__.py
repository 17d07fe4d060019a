"""How far workers have come, who is waited for, and what their stacks are: in memory only, beside the groups."""
