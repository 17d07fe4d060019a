"""Limits of a server's memory, whatever clients ask for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a server.

    Attributes:
        max_groups: including finished ones.
        max_nodes_per_group: live ones.
        keep_finished_s: how long a finished group is kept.
        keep_idle_s: how long an unfinished group is kept after its last agent has gone, unless it was made with PUT.
    """

    max_groups: int = 10_000
    max_nodes_per_group: int = 16_384
    keep_finished_s: float = 7 * 86_400.0
    keep_idle_s: float = 86_400.0


DEFAULT_LIMITS = Limits()
