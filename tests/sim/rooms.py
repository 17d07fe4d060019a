"""Optional features in the simulation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.sim import shares, snapshots
from tests.sim.room import InAgent, InChecks

IN_AGENTS: Sequence[Callable[[Any], InAgent]] = (
    shares.Asking,
    snapshots.Holding,
)
"""Made for each agent; see `room.InAgent`."""

ANSWERS: Sequence[Mapping[Any, Callable[..., Any]]] = (
    shares.ANSWERS,
    snapshots.ANSWERS,
)
"""What the server answers on their routes."""

IN_CHECKS: Sequence[Callable[[Any], InChecks]] = (
    shares.DecidedOnce,
    snapshots.BeginsFromTheNewest,
    snapshots.SafeOutlivesANode,
)
"""Made for the checks; see `room.InChecks`."""

WORDS: Sequence[Callable[[object], str | None]] = (
    shares.words,
    snapshots.words,
)

PLANTED_IN_ROOMS: Sequence[Mapping[str, tuple[Any, str, Any]]] = (snapshots.PLANTED,)
"""Faults that are planted on purpose; see test_planted.py."""
