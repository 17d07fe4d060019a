"""How far this node's workers have come, without a change to the script: what they answer, and what follows from it."""
