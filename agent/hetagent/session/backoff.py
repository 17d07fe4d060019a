"""Whether a server answers: how long it has been away, when to retry, when to give up. No clock: `now` is passed."""

import random
from math import ceil

from hetagent.session.refusals import CREDENTIALS
from hetrdzv.protocol.errors import HetError, Problem, Unavailable
from hetrdzv.protocol.texts.phrasing import duration_text

CONNECT_TIMEOUT_S = 60.0
"""Default of --connect-timeout-s: how long a first contact is tried, and refused credentials are retried (seconds)."""

RETRY_MIN_S, RETRY_MAX_S = 0.1, 2.0
"""Pause after the first and after many failed requests in a row, before jitter (seconds)."""

NOTICE_S = 10.0
"""How often an outage is logged again (seconds)."""


class Backoff:
    """Whether a server answers.

    Args:
        rng: for the jitter of pauses.
        connect_timeout_s: see `CONNECT_TIMEOUT_S`.

    Attributes:
        away: no server has answered lately.
        retry_at: no request is sent before this moment.
        refusal: why servers have refused this agent's credentials since one answered; empty if they have not.
    """

    def __init__(self, rng: random.Random, connect_timeout_s: float) -> None:
        self.away = False
        self.retry_at = 0.0
        self.refusal = ""
        self._rng = rng
        self._connect_timeout_s = connect_timeout_s
        self._failures = 0
        self._began_at: float | None = None
        self._answered_at: float | None = None
        self._fresh_from = 1  # requests with smaller numbers were sent before the last answer
        self._refused_since: float | None = None
        self._away_since = self._noticed_at = 0.0

    @property
    def has_ever_answered(self) -> bool:
        """Whether any server has."""
        return self._answered_at is not None

    def begin(self, now: float) -> None:
        """The first request is about to be sent: the time for a first contact counts from now."""
        if self._began_at is None:
            self._began_at = now

    def on_answer(self, sent_at: float, next_number: int, max_disconnect_s: float, now: float) -> bool:
        """A server answered; returns whether it was away until now.

        The server's lease for us runs from when it read the request, so an answer that took long counts from half of
        `max_disconnect_s` after sending, the longest that a poll waits.
        """
        answered_at = min(now, sent_at + max_disconnect_s / 2)
        self._answered_at = answered_at if self._answered_at is None else max(self._answered_at, answered_at)
        self._fresh_from = next_number
        self._failures, self.retry_at = 0, now
        self._refused_since, self.refusal = None, ""
        was_away, self.away = self.away, False
        return was_away

    def is_superseded(self, number: int) -> bool:
        """Whether a server has answered since that request was sent, so that its failure means nothing."""
        return number < self._fresh_from

    def abandon_reason(self, error: HetError, now: float) -> tuple[str, str] | None:
        """Code and reason to give up after this failure: no first contact in time, or credentials refused for as long,
        which leaves time to replace a token everywhere. None: retry.
        """
        if error.code in CREDENTIALS:
            self.refusal = str(error)
            self._refused_since = now if self._refused_since is None else self._refused_since
        else:
            self.refusal, self._refused_since = "", None
        since = self._deadline_from()
        if since is None or now < since + self._connect_timeout_s:
            return None
        tried_s = now - since
        text = f"{error}; gave up after {round(tried_s, 1 if tried_s < 10 else None):g} s"
        if self._answered_at is None:
            return "unreachable", text + _first_contact_hint(error)
        return "refused", f"{text} (--connect-timeout-s)"

    def on_failure(self, error: HetError, workers_until: float | None, now: float) -> str | None:
        """A request was not answered: pause before the next.

        Args:
            workers_until: when the workers that run are stopped (monotonic seconds); None: none run.

        Returns:
            what to show, at first and every `NOTICE_S`.
        """
        notice = None
        if not self.away or now >= self._noticed_at + NOTICE_S:
            notice = self._notice(error, workers_until, now)
            self._noticed_at = now
        if now >= self.retry_at:
            pause_s = min(RETRY_MAX_S, RETRY_MIN_S * 2.0 ** min(self._failures, 10))
            self._failures += 1
            self.retry_at = now + pause_s * self._rng.uniform(0.5, 1.0)
            if (since := self._deadline_from()) is not None:
                self.retry_at = min(self.retry_at, since + self._connect_timeout_s)
        return notice

    def workers_stop_at(self, max_disconnect_s: float) -> float | None:
        """When workers are stopped unless a server answers before; None: none has ever answered."""
        return None if self._answered_at is None else self._answered_at + max_disconnect_s

    def _deadline_from(self) -> float | None:
        return self._began_at if self._answered_at is None else self._refused_since

    def _notice(self, error: HetError, workers_until: float | None, now: float) -> str:
        text = (
            f"the server answers with HTTP {error.status}: {error}"
            if isinstance(error, Problem)
            else str(error)
        )
        if self.away:
            text += f", for {now - self._away_since:.0f} s now"
        else:
            self.away, self._away_since = True, now
        text += "; "
        if workers_until is not None:
            text += f"workers continue for {duration_text(max(0.0, workers_until - now))}, "
        text += "trying again"
        if self._answered_at is None and self._began_at is not None:
            left_s = max(0.0, self._began_at + self._connect_timeout_s - now)
            text += f" for {ceil(left_s)} s more{_first_contact_hint(error)}"
        return text


def _first_contact_hint(error: HetError) -> str:
    return "" if isinstance(error, Unavailable) else ": start hetserver there, or check --server"
