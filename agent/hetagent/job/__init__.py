"""Snapshots on the side of the node."""
