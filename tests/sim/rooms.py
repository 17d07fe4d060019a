"""Optional features in the simulation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.sim import snapshots
from tests.sim.room import InAgent, InChecks

IN_AGENTS: Sequence[Callable[[Any], InAgent]] = (snapshots.Holding,)
"""Made for each agent; see `room.InAgent`."""

ANSWERS: Sequence[Mapping[Any, Callable[..., Any]]] = (snapshots.ANSWERS,)
"""What the server answers on their routes."""

IN_CHECKS: Sequence[Callable[[Any], InChecks]] = (
    snapshots.BeginsFromTheNewest,
    snapshots.SafeOutlivesANode,
)
"""Made for the checks; see `room.InChecks`."""

WORDS: Sequence[Callable[[object], str | None]] = (snapshots.words,)

PLANTED_IN_ROOMS: Sequence[Mapping[str, tuple[Any, str, Any]]] = (snapshots.PLANTED,)
"""Faults that are planted on purpose; see test_planted.py."""
