"""The words of optional features: for each, what it says of its events and warnings, by their classes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hetrdzv.protocol.facts.events import Event
from hetrdzv.words import network, shares

EVENTS: Sequence[Mapping[type, Callable[[Any, Event], str]]] = (
    shares.EVENTS,
    network.EVENTS,
)

WARNINGS: Sequence[Mapping[type, Callable[[Any], str]]] = (
    shares.WARNINGS,
    network.WARNINGS,
)
