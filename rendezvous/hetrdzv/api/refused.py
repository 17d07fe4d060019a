"""Logs refusals, rate-limited: what a client does again and again must not fill the log. Never the token."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from hetrdzv.protocol.errors import HetError

logger = logging.getLogger(__name__)

EVERY_S = 60.0
"""The same refusal of the same client is logged once in this time (seconds)."""

MOST_LOGGED = 200
"""How many refusals are logged in this time."""

ACCESS = frozenset({"unauthorized", "forbidden", "foreign_host", "version_mismatch"})
"""Refusals that say that a client may not speak to this server: warnings. The others are information."""

ROUTINE = frozenset({"stale_round", "unknown_group", "unknown_node", "not_leader", "group_finishing"})
"""What goes wrong in every job, or is asked again at once by itself."""


class RefusalLog:
    """Refusals that were logged lately, by client address and code."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until = 0.0
        self._logged: set[tuple[str, str]] = set()

    def note(self, error: HetError, scope: Mapping[str, Any]) -> None:
        """Log a refusal, unless the same one of this client's was logged lately."""
        if not 400 <= error.status < 500 or error.code in ROUTINE:
            return
        if (now := self._monotonic()) >= self._until:
            self._until = now + EVERY_S
            self._logged.clear()
        client = scope["client"][0] if scope.get("client") else "an unknown address"
        if (client, error.code) in self._logged or len(self._logged) >= MOST_LOGGED:
            return
        self._logged.add((client, error.code))
        level = logging.WARNING if error.code in ACCESS else logging.INFO
        facts = {"client": client, "code": error.code, "status": error.status}
        path = scope["path"][:200]
        logger.log(
            level, "refused %s %s from %s: %s", scope["method"], path, client, error, extra={"facts": facts}
        )
