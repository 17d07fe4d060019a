"""Optional features in the simulation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.sim import shares

IN_AGENTS: Sequence[Callable[[Any], Any]] = (shares.Asking,)
"""Made for each agent; each is told when workers were launched, and what was answered."""

ANSWERS: Sequence[Mapping[Any, Callable[..., Any]]] = (shares.ANSWERS,)
"""What the server answers on their routes."""

IN_CHECKS: Sequence[Callable[[Any], Any]] = (shares.DecidedOnce,)
"""Made for the checks; each sees every round that is stored, and every answer."""

WORDS: Sequence[Callable[[object], str | None]] = (shares.words,)
