"""Jobs of a few real ranks, to see what snapshots bring back in other worlds."""
