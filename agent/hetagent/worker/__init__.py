"""What runs in the workers' Python; standard library only."""
