"""Whether a server answers: how long it has been away, when to retry, when to give up. No clock: `now` is passed."""

import random
from math import ceil

from hetagent.session.refusals import CREDENTIALS
from hetrdzv.protocol.errors import HetError, NotServing, Problem
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
        retry_at: no request is sent before this moment.
        refusal: why servers have refused this agent's credentials since one answered; empty if they have not.
    """

    def __init__(self, rng: random.Random, connect_timeout_s: float) -> None:
        self.retry_at = 0.0
        self.refusal = ""
        self._rng = rng
        self._connect_timeout_s = connect_timeout_s
        self._failures = 0
        self._answered_at: float | None = None
        self._fresh_from = 1  # requests with smaller numbers were sent before the last answer
        self._give_up_at: float | None = None  # unless a server answers, or accepts the credentials
        self._away_since: float | None = None
        self._logged_at = 0.0

    @property
    def is_away(self) -> bool:
        """Whether no server has answered lately."""
        return self._away_since is not None

    @property
    def has_ever_answered(self) -> bool:
        """Whether any server has."""
        return self._answered_at is not None

    def begin_contact(self, now: float) -> None:
        """The first request is about to be sent: the time for a first contact counts from now."""
        if self._answered_at is None and self._give_up_at is None:
            self._give_up_at = now + self._connect_timeout_s

    def on_answer(self, sent_at: float, next_number: int, max_disconnect_s: float, now: float) -> bool:
        """A server answered; returns whether it was away until now.

        The server's lease for us runs from when it read the request, so an answer that took long counts from half of
        `max_disconnect_s` after sending, the longest that a poll waits.
        """
        answered_at = min(now, sent_at + max_disconnect_s / 2)
        self._answered_at = max(answered_at, self._answered_at or answered_at)
        self._fresh_from = next_number
        self._failures, self.retry_at = 0, now
        self._give_up_at, self.refusal = None, ""
        was_away, self._away_since = self.is_away, None
        return was_away

    def has_answered_since(self, number: int) -> bool:
        """Whether a server has answered since that request was sent, so that its failure means nothing."""
        return number < self._fresh_from

    def abandon_reason(self, error: HetError, now: float) -> tuple[str, str] | None:
        """Code and reason to give up after this failure: no first contact in time, or credentials refused for as long,
        which leaves time to replace a token everywhere. None: retry.
        """
        if self._answered_at is not None:
            is_refused = error.code in CREDENTIALS
            self.refusal = str(error) if is_refused else ""
            self._give_up_at = (self._give_up_at or now + self._connect_timeout_s) if is_refused else None
        if self._give_up_at is None or now < self._give_up_at:
            return None
        tried_s = now - self._give_up_at + self._connect_timeout_s
        text = f"{error}; gave up after {round(tried_s, 1 if tried_s < 10 else None):g} s"
        if self._answered_at is None:
            return "unreachable", text + _first_contact_hint(error)
        return "refused", f"{text} (--connect-timeout-s)"

    def on_failure(self, error: HetError, workers_until: float | None, now: float) -> str | None:
        """A request was not answered: pause before the next.

        Args:
            workers_until: when the workers that run are stopped (monotonic seconds); None: none run.

        Returns:
            what to log, at first and every `NOTICE_S`.
        """
        line = None
        if self._away_since is None or now >= self._logged_at + NOTICE_S:
            line, self._logged_at = self._describe_outage(error, workers_until, now), now
            self._away_since = now if self._away_since is None else self._away_since
        if now >= self.retry_at:
            pause_s = min(RETRY_MAX_S, RETRY_MIN_S * 2.0 ** min(self._failures, 10))
            self._failures += 1
            self.retry_at = now + pause_s * self._rng.uniform(0.5, 1.0)
            if self._give_up_at is not None:
                self.retry_at = min(self.retry_at, self._give_up_at)
        return line

    def workers_stop_at(self, max_disconnect_s: float) -> float | None:
        """When workers are stopped unless a server answers before; None: none has ever answered."""
        return None if self._answered_at is None else self._answered_at + max_disconnect_s

    def _describe_outage(self, error: HetError, workers_until: float | None, now: float) -> str:
        text = str(error)
        if isinstance(error, Problem):
            text = f"the server answers with HTTP {error.status}: {error}"
        if self._away_since is not None:
            text += f", for {now - self._away_since:.0f} s now"
        text += "; "
        if workers_until is not None:
            text += f"the round continues for {duration_text(max(0.0, workers_until - now))}, "
        text += "trying again"
        if self._answered_at is None and self._give_up_at is not None:
            text += f" for {ceil(max(0.0, self._give_up_at - now))} s more{_first_contact_hint(error)}"
        return text


def _first_contact_hint(error: HetError) -> str:
    return "" if isinstance(error, NotServing) else ": start hetserver there, or check --server"
