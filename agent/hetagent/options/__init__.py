"""What the person asked for."""
