"""What optional features count for metrics."""

from collections.abc import Callable, Sequence

from hetrdzv.service import snapshots

COUNTED: Sequence[Sequence[tuple[str, str, str, Callable[[object], int]]]] = (snapshots.COUNTED,)
"""Counters that events move on: name, what it counts, the kind of the events, and how much the facts of one count."""
