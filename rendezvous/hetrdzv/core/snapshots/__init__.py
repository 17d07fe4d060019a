"""Snapshots: which of them are complete, and from which one the next round begins."""
