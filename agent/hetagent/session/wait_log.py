"""Logs what this node waits for whenever that changes, and who is waited for in the round that runs."""

import time
from collections.abc import Callable
from dataclasses import replace

from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.states import DirectiveKind

NEWS_S = 5.0
"""Changes are logged at most this often (seconds)."""


class WaitLog:
    """Logs the news of a node's directives.

    Args:
        log: shows one line.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._logged: tuple[object, float] = (None, 0.0)  # what, and when (monotonic seconds)
        self._stall: object = None  # who was said to be waited for

    def update(self, directive: Directive, *, leaving: bool) -> None:
        """See what the newest directive says; one without a version has not come from a server."""
        if directive.kind is DirectiveKind.WAIT and directive.version and not leaving:
            self._describe_waiting(directive)
        else:
            self._logged = (None, 0.0)
        if directive.kind is DirectiveKind.START:
            self._describe_running(directive)
        else:
            self._stall = None

    def _describe_waiting(self, directive: Directive) -> None:
        now = time.monotonic()
        what = replace(directive.reason, since=None, until=None)  # moments pass: they are no news
        if what != self._logged[0] and now - self._logged[1] >= NEWS_S:
            self._logged = (what, now)
            self._log(f"waiting: {directive.why}")

    def _describe_running(self, directive: Directive) -> None:
        stall: object = None
        if directive.code == "stalled":
            stall = directive.reason.ranks, directive.reason.data
        if stall is None and self._stall is not None:
            self._log(f"round {directive.round} goes on")
        elif stall is not None and stall != self._stall:
            self._log(directive.why)
        self._stall = stall
