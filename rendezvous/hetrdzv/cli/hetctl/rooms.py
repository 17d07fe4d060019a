"""What optional features show in hetctl: a name, and what stands there."""

from collections.abc import Callable, Sequence

from hetrdzv.cli.hetctl.shares import pace_of, shares_of, speeds_of, weight_of
from hetrdzv.protocol.pages import NodeReply, RoundReply, WorkerReply

OF_ROUND: Sequence[tuple[str, Callable[[RoundReply], str]]] = (("shares", shares_of),)

OF_NODE: Sequence[tuple[str, Callable[[NodeReply], str]]] = (("speeds", speeds_of),)

OF_WORKERS: Sequence[tuple[str, Callable[[RoundReply], Callable[[WorkerReply], float | None]]]] = (
    ("WEIGHT", weight_of),
    ("PACE", pace_of),
)
"""Columns: for a round, what gives a worker's number; None: nobody knows it."""
