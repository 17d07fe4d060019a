"""What can go wrong with snapshots."""


class SnapshotError(RuntimeError):
    """A snapshot cannot be taken or loaded; the text says why, and what to do."""


class SnapshotSuperseded(SnapshotError):
    """Its slot was needed for a newer snapshot before this one was complete; nothing is wrong."""
