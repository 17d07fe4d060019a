"""Watching workers: how far they have come, who hangs and where, and what they write."""
