"""The join that is to be sent, and for how long one that a server refuses is tried again.

No clock: whoever uses it says what time it is (`now`, monotonic seconds).
"""

from collections import deque
from math import ceil, inf

from hetagent.session.refusals import conflict_of, conflict_text
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.requests.joining import JoinRequest, SpecFields

FINISHING_RETRY_S = 0.3
"""Pause before another attempt to join a group whose last job is still exiting (seconds)."""

REJOIN_PACE_S = 0.3
"""Joins that the session sends by itself are at least this far apart (seconds)."""

IN_USE_RETRY_S = 0.5
IN_USE_MARGIN_S = 2.0
"""A node id in use is tried for a lease and this much longer: the agent that uses it may be dead (seconds)."""

MAY_PASS = ("spec_conflict", "node_id_in_use", "group_finishing")
"""Codes with which a server refuses joins that it may take later."""


class Joining:
    """One node's joins.

    Args:
        group: the name of the group.
        notices: where it goes what the person at the terminal should know.

    Attributes:
        due: the join that is to be sent.
        due_at: not before that moment (monotonic seconds).
        number: that of the request with the newest.
        ever: whether the server has ever accepted one.
    """

    def __init__(self, group: str, notices: deque[str]) -> None:
        self.due: JoinRequest | None = None
        self.due_at = 0.0
        self.number = 0
        self.ever = False
        self._group = group
        self._notices = notices
        self._sent_at = -inf
        self._in_use_until: float | None = None
        self._conflict_until: float | None = None
        self._finishing_told = False

    def next_by_itself(self, now: float, pause_s: float = REJOIN_PACE_S) -> float:
        """When to send one that nobody has asked for: not in a busy loop, whatever the server says."""
        return max(now, self._sent_at + pause_s)

    def sent(self, number: int, now: float) -> None:
        """The one that is due is on its way, as request `number`."""
        self.number, self._sent_at = number, now

    def accepted(self, body: JoinRequest) -> None:
        """A server has accepted one."""
        self.ever = True
        self._in_use_until, self._conflict_until, self._finishing_told = None, None, False
        if body == self.due:
            self.due = None

    def refused(self, error: HetError, given: SpecFields, lease_s: float, now: float) -> str | None:
        """A server has refused one with a code of `MAY_PASS`.

        Args:
            given: the settings that this agent was given.
            lease_s: the group's (seconds).

        Returns:
            why it makes no sense to try again; None: it is tried again.
        """
        if error.code == "spec_conflict":
            return self._conflict(error, given, now)
        if error.code == "node_id_in_use":
            return self._in_use(error, lease_s, now)
        self.due_at = now + FINISHING_RETRY_S
        if not self._finishing_told:
            self._finishing_told = True
            self._notices.append(f"{error}; waiting for that to happen")
        return None

    def _conflict(self, error: HetError, given: SpecFields, now: float) -> str | None:
        """The group has other settings; it may take ours once the nodes that hold it to them have gone."""
        conflict = conflict_of(error)
        if conflict is None:
            return str(error)
        text, patience_s = conflict_text(self._group, conflict, given), conflict.retry_for_s
        if patience_s is not None and self._conflict_until is None:
            self._conflict_until = now + patience_s + IN_USE_MARGIN_S
            going = "it goes" if len(conflict.nodes) == 1 else "they go"
            self._notices.append(f"{text}; trying again until {going} (at most {ceil(patience_s)} s more)")
        if patience_s is None or self._conflict_until is None or now >= self._conflict_until:
            return text
        self.due_at = min(now + IN_USE_RETRY_S, self._conflict_until)
        return None

    def _in_use(self, error: HetError, lease_s: float, now: float) -> str | None:
        """Another agent uses this node id; it may have died without the server having noticed yet."""
        if self._in_use_until is not None and now >= self._in_use_until:
            return str(error)
        if self._in_use_until is None:
            patience_s = lease_s + IN_USE_MARGIN_S
            self._in_use_until = now + patience_s
            self._notices.append(
                f"{error}; trying for {patience_s:g} s, in case that is this node's previous agent and has died"
            )
        self.due_at = min(now + IN_USE_RETRY_S, self._in_use_until)
        return None
