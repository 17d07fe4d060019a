"""A node's joins: when to send one, how long to retry one that was refused.

No clock: `now` is passed (monotonic seconds).
"""

from math import ceil, inf

from hetagent.session.refusals import describe_conflict, read_error_field
from hetrdzv.protocol.errors import HetError, SettingsConflict
from hetrdzv.protocol.requests import JoinRequest

PAUSE_S = 0.3
"""Least pause before what a server has refused is tried again, and before a join that nobody asked for (seconds)."""

IN_USE_MARGIN_S = 2.0
"""A node id in use is retried for a lease and this much longer: the agent that uses it may be dead (seconds)."""

MAY_PASS = ("spec_conflict", "node_id_in_use", "group_finishing")
"""Codes with which a server refuses joins that it may accept later."""


class JoinSchedule:
    """One node's joins.

    Args:
        group: the name of the group.
        log_lines: gets what to show.

    Attributes:
        next_join: the join to send.
        due_at: not before that moment.
        number: of the newest join's request.
        was_accepted: whether the server has ever accepted one.
    """

    def __init__(self, group: str, log_lines: list[str]) -> None:
        self.next_join: JoinRequest | None = None
        self.due_at = 0.0
        self.number = 0
        self.was_accepted = False
        self._group = group
        self._log_lines = log_lines
        self._sent_at = -inf
        self._refused_with = ""  # the code that is waited out, and until when
        self._until = inf

    def next_at(self, now: float, pause_s: float = PAUSE_S) -> float:
        """When to send a join that the agent has not asked for: never in a busy loop."""
        return max(now, self._sent_at + pause_s)

    def on_sent(self, number: int, now: float) -> None:
        """The one that is due is in flight, as request `number`."""
        self.number, self._sent_at = number, now

    def on_accepted(self, body: JoinRequest) -> None:
        """A server has accepted one."""
        self.was_accepted, self._refused_with = True, ""
        if body == self.next_join:
            self.next_join = None

    def on_refused(self, error: HetError, lease_s: float, now: float) -> str | None:
        """A server has refused one with a code of `MAY_PASS`; returns why not to try again, or None.

        Args:
            lease_s: the group's (seconds).
        """
        text, patience_s, notice = str(error), inf, f"{error}; waiting for that to happen"
        if error.code == "node_id_in_use":
            patience_s = lease_s + IN_USE_MARGIN_S
            notice = f"{error}; trying for {patience_s:g} s, in case that is this node's previous agent and has died"
        elif error.code == "spec_conflict":
            if (conflict := read_error_field(error, "conflict", SettingsConflict)) is None:
                return text
            text = describe_conflict(self._group, conflict)
            if (left_s := conflict.retry_for_s) is None:
                return text
            patience_s = left_s + IN_USE_MARGIN_S
            going = "it goes" if len(conflict.nodes) == 1 else "they go"
            notice = f"{text}; trying again until {going} (at most {ceil(left_s)} s more)"
        if self._refused_with != error.code:
            self._refused_with, self._until = error.code, now + patience_s
            self._log_lines.append(notice)
        elif now >= self._until:
            return text
        self.due_at = min(now + PAUSE_S, self._until)
        return None
