"""What a node still has to tell the server about its round: reports, and daemons that other members are to run."""

from collections import deque
from dataclasses import dataclass

from hetagent.protocol.requests import Head, Report, StartDaemon
from hetrdzv.protocol.wire import DaemonRequest, ReportRequest


@dataclass(frozen=True, slots=True)
class DaemonAnswer:
    """What became of a daemon that another member was to run; `refusal` says why it does not run, None if it does."""

    round: int
    node_id: str
    refusal: str | None


@dataclass(frozen=True, slots=True)
class _Pending:
    """A report, or a daemon for `target`, that has not been answered, and when there was something to tell."""

    body: ReportRequest | DaemonRequest
    seen_at: float
    target: str = ""


class Reports:
    """Reports and daemons that wait for an answer; one is on its way at a time."""

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()
        self._sent: _Pending | None = None
        self._answers: deque[DaemonAnswer] = deque()

    def __bool__(self) -> bool:
        """Whether there is anything to send."""
        return bool(self._pending)

    def add(self, report: ReportRequest, seen_at: float) -> None:
        """A report is to be sent; `seen_at` is when it became true."""
        self._pending.append(_Pending(report, seen_at))

    def add_daemon(self, daemon: DaemonRequest, target: str, now: float) -> None:
        """Member `target` is to run a daemon."""
        self._pending.append(_Pending(daemon, now, target))

    def next(self, head: Head, now: float) -> Report | StartDaemon:
        """The request for the first of them, which is now on its way; a report tells its age at this moment."""
        self._sent = pending = self._pending[0]
        if isinstance(pending.body, DaemonRequest):
            return StartDaemon(**head, target=pending.target, body=pending.body)
        age_s = max(0.0, now - pending.seen_at)
        return Report(**head, body=pending.body.model_copy(update={"age_s": age_s}))

    def settle(self, refusal: str | None = None) -> None:
        """The one on its way was delivered, or does not matter any more; a daemon's gets its answer."""
        if self._pending and self._pending[0] is self._sent:
            self._answer(self._pending.popleft(), refusal)
        self._sent = None

    def drop(self, why: str) -> None:
        """Nobody takes them any more."""
        for pending in self._pending:
            self._answer(pending, why)
        self._pending.clear()

    def refuse_daemon(self, round_number: int, node_id: str, why: str) -> None:
        """Answer for a daemon that is not even sent."""
        self._answers.append(DaemonAnswer(round_number, node_id, why))

    def take_answers(self) -> list[DaemonAnswer]:
        """What became of daemons, since the last call; each is answered once."""
        taken, self._answers = list(self._answers), deque()
        return taken

    def _answer(self, pending: _Pending, refusal: str | None) -> None:
        if isinstance(pending.body, DaemonRequest):
            self._answers.append(DaemonAnswer(pending.body.round, pending.target, refusal))
