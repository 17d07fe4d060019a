"""`--check-network`: before the workers of a round start, how fast the network is between its nodes."""
