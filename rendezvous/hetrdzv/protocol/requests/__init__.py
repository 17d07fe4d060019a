"""What agents and people send, and what is asked of agents."""
