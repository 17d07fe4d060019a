"""The words of optional features: for each, what it says of its events and warnings, by their classes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hetrdzv.protocol.facts.events import Event
from hetrdzv.protocol.pages import GroupSummary
from hetrdzv.words import snapshots

EVENTS: Sequence[Mapping[type, Callable[[Any, Event], str]]] = (snapshots.EVENTS,)

WARNINGS: Sequence[Mapping[type, Callable[[Any], str]]] = (snapshots.WARNINGS,)

COSTS: Sequence[Mapping[str, Callable[[Any], str]]] = (snapshots.COSTS,)
"""What events of a round that begins say about the end of the one before, by kind; empty: nothing."""

SUMMARY: Sequence[tuple[str, Callable[[GroupSummary], str], Callable[[GroupSummary], str]]] = (
    ("snapshot", snapshots.of_group, snapshots.in_brief),
)
"""What the summary of a group says besides: a name, what stands there, and the same in brief; empty: nothing."""
