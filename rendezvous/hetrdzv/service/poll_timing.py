"""How often a node polls, and how long its lease is: both grow with the number of nodes of the server."""

from dataclasses import dataclass

MAX_SERVER_POLLS_PER_S = 500
"""How many polls a second a server has time for."""

MAX_POLL_WAIT_S = 30.0
"""No poll waits longer (seconds)."""


@dataclass(frozen=True)
class PollTiming:
    """How a node keeps in touch."""

    poll_s: float  # how long its next poll may wait (seconds)
    lease_s: float  # without a heartbeat for this long it is lost (seconds)


def choose_poll_timing(lease_s: float, nodes: int) -> PollTiming:
    """How one of so many nodes of a server keeps in touch: few poll twice per lease, more as often as it has time."""
    poll_s = min(max(lease_s / 2, nodes / MAX_SERVER_POLLS_PER_S), MAX_POLL_WAIT_S)
    return PollTiming(poll_s, max(lease_s, 2 * poll_s))
