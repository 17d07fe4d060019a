"""Shares of the work: workers are told theirs, and how fast the slots of this node are is measured (`--measure`)."""
