"""Contact with the server, as far as this node can tell: since when it is away, when to try again, when to give up.

No clock: whoever uses it says what time it is (`now`, monotonic seconds).
"""

import random

from hetagent.session.refusals import CREDENTIALS
from hetagent.session.requests import Request
from hetrdzv.protocol.errors import HetError, Problem

CONNECT_TIMEOUT_S = 60.0
"""How long a first contact is tried unless somebody says otherwise (seconds)."""

RETRY_MIN_S, RETRY_MAX_S = 0.1, 2.0
"""Pause after the first and after many requests in a row that no server answered, before jitter (seconds)."""

NEWS_S = 10.0
"""While no server answers, that is said again this often (seconds)."""


class Contact:
    """Whether a server answers.

    Args:
        rng: for the jitter of pauses.
        connect_timeout_s: how long a first contact is tried (seconds).

    Attributes:
        away: whether no server has answered lately.
        retry_at: no request is sent before this moment.
        refusal: why servers have refused this agent's credentials since one answered; empty if they have not.
    """

    def __init__(self, rng: random.Random, connect_timeout_s: float) -> None:
        self.away = False
        self.retry_at = 0.0
        self._rng = rng
        self._connect_timeout_s = connect_timeout_s
        self._failures = 0
        self._heard_at: float | None = None
        self._heard_from = 1  # requests with smaller numbers were sent before the server was last heard
        self._began_at: float | None = None
        self._away_since = self._told_at = 0.0
        self._refused_since: float | None = None
        self.refusal = ""

    def begin(self, now: float) -> None:
        """The first request is about to be sent: from now on the time for a first contact counts."""
        if self._began_at is None:
            self._began_at = now

    def heard(self, sent_at: float, next_number: int, max_disconnect_s: float, now: float) -> bool:
        """A server answered a request.

        It heard from us when we asked, so an answer that took long counts from half a `max_disconnect_s` after that,
        which is the longest that a poll waits: what the server promises ends with our lease.

        Args:
            sent_at: when the request was sent.
            next_number: the number that the next request will have.
            max_disconnect_s: the group's setting (seconds).

        Returns:
            whether the server was away until now.
        """
        heard_at = min(now, sent_at + max_disconnect_s / 2)
        self._heard_at = heard_at if self._heard_at is None else max(self._heard_at, heard_at)
        self._heard_from = next_number
        self._failures, self.retry_at = 0, now
        self._refused_since, self.refusal = None, ""
        was_away, self.away = self.away, False
        return was_away

    def is_old(self, request: Request) -> bool:
        """Whether a server has been heard since a request was sent, so that its failure means nothing."""
        return request.number < self._heard_from

    def hopeless_after_s(self, now: float) -> float | None:
        """For how long no server has answered, if the time for a first contact is over (seconds)."""
        if (
            self._heard_at is not None
            or self._began_at is None
            or now < self._began_at + self._connect_timeout_s
        ):
            return None
        return round(now - self._began_at, 1)

    def hoped_for_s(self, now: float) -> float | None:
        """How much longer a first contact is tried (seconds); None: a server has answered once, so there is no end."""
        if self._heard_at is not None or self._began_at is None:
            return None
        return max(0.0, self._began_at + self._connect_timeout_s - now)

    def refused(self, error: HetError, now: float) -> float | None:
        """A request was not answered, perhaps since this agent's credentials were refused.

        Returns:
            for how long they have been refused without a break, if that is as long as a first contact may take
            (seconds): whoever replaces a token does so at the server and at the agents within that time.
        """
        if error.code not in CREDENTIALS:
            self._refused_since, self.refusal = None, ""
            return None
        self.refusal = str(error)
        if self._refused_since is None:
            self._refused_since = now
        refused_s = now - self._refused_since
        return round(refused_s, 1) if refused_s >= self._connect_timeout_s else None

    def lost(self, error: HetError, now: float) -> str | None:
        """A request was not answered: the next one is sent after a pause.

        Returns:
            what happened, if that is news, or was said `NEWS_S` ago.
        """
        news = None
        if not self.away or now >= self._told_at + NEWS_S:
            news = (
                f"the server answers with HTTP {error.status}: {error}"
                if isinstance(error, Problem)
                else str(error)
            )
            if self.away:
                news = f"{news}, for {now - self._away_since:.0f} s now"
            else:
                self.away, self._away_since = True, now
            self._told_at = now
        if now >= self.retry_at:
            pause_s = min(RETRY_MAX_S, RETRY_MIN_S * 2.0 ** min(self._failures, 10))
            self._failures += 1
            self.retry_at = now + pause_s * self._rng.uniform(0.5, 1.0)
            since = self._began_at if self._heard_at is None else self._refused_since
            if since is not None:
                self.retry_at = min(self.retry_at, since + self._connect_timeout_s)
        return news

    def ends_at(self, max_disconnect_s: float) -> float | None:
        """When workers are stopped if no server is heard until then; None: none has ever been heard."""
        return None if self._heard_at is None else self._heard_at + max_disconnect_s
