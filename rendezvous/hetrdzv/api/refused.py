"""Logs refusals, rate-limited: what a client does again and again must not fill the log. Never the token."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from starlette.requests import Request
from starlette.types import Scope

from hetrdzv.protocol.errors import HetError

logger = logging.getLogger(__name__)

EVERY_S = 60.0
"""The same refusal of the same client is logged once in this time; then with how often it came since (seconds)."""

SOURCES_KEPT = 1_000
"""How many refusals are remembered at once. When more come within `EVERY_S`, the others are only counted."""

ACCESS = frozenset({"unauthorized", "forbidden", "foreign_host", "version_mismatch"})
"""Refusals that say that a client may not speak to this server: warnings. The others are information."""

ROUTINE = frozenset({"stale_round", "unknown_group", "unknown_node", "not_leader", "group_finishing"})
"""What goes wrong in every job, or is asked again at once by itself."""


def client_of(scope: Scope) -> str:
    """The address that a request came from."""
    client = scope.get("client")
    return client[0] if client else "an unknown address"


@dataclass(slots=True)
class _Entry:
    said_at: float
    since: int = 0


class RefusalLog:
    """Refusals that were logged lately, by client address and code.

    Args:
        monotonic: a clock that only goes forward (seconds).
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._known: dict[tuple[str, str], _Entry] = {}
        self._unsaid = 0
        self._unsaid_told_at = -inf

    def note_request(self, error: HetError, request: Request) -> None:
        """Log a refusal, see `note`."""
        self.note(error, client_of(request.scope), request.method, request.url.path)

    def note(self, error: HetError, client: str, method: str, path: str) -> None:
        """Log a refusal, unless the same one was logged lately.

        Args:
            client: its address.
        """
        if not 400 <= error.status < 500 or error.code in ROUTINE:
            return
        level = logging.WARNING if error.code in ACCESS else logging.INFO
        if not logger.isEnabledFor(level):
            return
        now, key = self._monotonic(), (client, error.code)
        entry = self._known.get(key)
        if entry is not None and now - entry.said_at < EVERY_S:
            entry.since += 1
            return
        if entry is not None:
            del self._known[key]
        elif len(self._known) >= SOURCES_KEPT:
            oldest = next(iter(self._known))  # they are in the order in which they were logged
            if now - self._known[oldest].said_at < EVERY_S:
                self._count_unsaid(now)
                return
            del self._known[oldest]
        self._known[key] = _Entry(now)
        again = f" ({entry.since} more since the last such line)" if entry is not None and entry.since else ""
        logger.log(
            level,
            "refused %s %s from %s: %s%s",
            method,
            path[:200],
            client,
            error,
            again,
            extra={"facts": {"client": client, "code": error.code, "status": error.status}},
        )

    def _count_unsaid(self, now: float) -> None:
        """Count a refusal of a client that there is no room to remember, and say now and then how many there were."""
        self._unsaid += 1
        if now - self._unsaid_told_at >= EVERY_S:
            logger.warning("refused so many clients that not each is logged (%d not logged)", self._unsaid)
            self._unsaid, self._unsaid_told_at = 0, now
