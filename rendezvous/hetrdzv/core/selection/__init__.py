"""Which nodes form a round, and in which order: one answer that everything else reads."""
