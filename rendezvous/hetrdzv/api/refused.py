"""Logs refusals, rate-limited: what a client does again and again must not fill the log. Never the token."""

import logging
import time
from collections.abc import Callable

from starlette.requests import Request
from starlette.types import Scope

from hetrdzv.protocol.errors import HetError

logger = logging.getLogger(__name__)

EVERY_S = 60.0
"""The same refusal of the same client is logged once in this time; then, how many more there were (seconds)."""

MOST_LOGGED = 200
"""How many refusals are logged in this time. Others are only counted."""

ACCESS = frozenset({"unauthorized", "forbidden", "foreign_host", "version_mismatch"})
"""Refusals that say that a client may not speak to this server: warnings. The others are information."""

ROUTINE = frozenset({"stale_round", "unknown_group", "unknown_node", "not_leader", "group_finishing"})
"""What goes wrong in every job, or is asked again at once by itself."""


def client_of(scope: Scope) -> str:
    """The address that a request came from."""
    client = scope.get("client")
    return client[0] if client else "an unknown address"


class RefusalLog:
    """Refusals that were logged lately, by client address and code."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until = 0.0
        self._logged: set[tuple[str, str]] = set()
        self._more = 0

    def note_request(self, error: HetError, request: Request) -> None:
        """Log a refusal, see `note`."""
        self.note(error, client_of(request.scope), request.method, request.url.path)

    def note(self, error: HetError, client: str, method: str, path: str) -> None:
        """Log a refusal, unless the same one of this client's was logged lately."""
        if not 400 <= error.status < 500 or error.code in ROUTINE:
            return
        if (now := self._monotonic()) >= self._until:
            if self._more:
                logger.info("refused %d more requests, for reasons logged before", self._more)
            self._until, self._more = now + EVERY_S, 0
            self._logged.clear()
        if (client, error.code) in self._logged or len(self._logged) >= MOST_LOGGED:
            self._more += 1
            return
        self._logged.add((client, error.code))
        logger.log(
            logging.WARNING if error.code in ACCESS else logging.INFO,
            "refused %s %s from %s: %s",
            method,
            path[:200],
            client,
            error,
            extra={"facts": {"client": client, "code": error.code, "status": error.status}},
        )
