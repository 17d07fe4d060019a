"""Signing in to the dashboard: a code that works once becomes a cookie, which stands for a token and ends with it.

Both are kept as hashes in the memory of this server. The cookie signs in to pages only, never to `/v1`.
"""

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from starlette.requests import Request

from hetrdzv.auth.policy import Permit, permit_of
from hetrdzv.auth.tokens import Entry, Tokens

CODE_S = 300.0
"""How long a code can be used (seconds)."""

SESSION_S = 12 * 3600.0
"""How long a browser stays signed in at most (seconds)."""

MOST_CODES = 200
MOST_SESSIONS = 1_000
"""When there are more, the oldest of the token that has most ends, so that no token signs out the others."""


@dataclass(slots=True, eq=False)
class Session:
    """A browser that is signed in.

    Attributes:
        entry: the token that it stands for.
        ends_at: when it ends at the latest (seconds).
        csrf: what requests that change something must bring along; pages of other sites do not know it.
        over: whether its person has signed out.
    """

    entry: Entry
    ends_at: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    over: bool = False


class Sessions:
    """The codes and sessions of one server.

    Args:
        tokens: that it accepts; None: it needs none, and nobody signs in.
        monotonic: a clock that only goes forward (seconds).

    Attributes:
        open_csrf: the `Session.csrf` of everybody, where no token is needed.
    """

    def __init__(self, tokens: Tokens | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        self._monotonic = monotonic
        self._codes: dict[bytes, tuple[Entry, float]] = {}
        self._sessions: dict[bytes, Session] = {}
        self.open_csrf = secrets.token_urlsafe(24)

    def code(self, entry: Entry) -> str:
        """A new code for the bearer of a token."""
        code = secrets.token_urlsafe(24)
        self._codes[_digest(code)] = entry, self._monotonic() + CODE_S
        while len(self._codes) > MOST_CODES:
            del self._codes[_surplus({key: entry for key, (entry, _) in self._codes.items()})]
        return code

    def redeem(self, code: str) -> str | None:
        """Use up a code: the value of the cookie, or None if it was used, is too old, or its token is gone."""
        entry, until = self._codes.pop(_digest(code), (None, 0.0))
        now = self._monotonic()
        if entry is None or now > until or self._tokens is None or not self._tokens.holds(entry):
            return None
        cookie = secrets.token_urlsafe(32)
        self._sessions[_digest(cookie)] = Session(entry, now + SESSION_S)
        while len(self._sessions) > MOST_SESSIONS:
            self._drop(_surplus({key: session.entry for key, session in self._sessions.items()}))
        return cookie

    def permit(self, cookie: str) -> "SignedIn | None":
        """What the browser with a cookie may do; None: it is signed in no longer."""
        session = self.find(cookie)
        return SignedIn(session, self) if session is not None else None

    def find(self, cookie: str) -> Session | None:
        """The session of a cookie, or None if it is over."""
        key = _digest(cookie)
        session = self._sessions.get(key)
        if session is not None and not self.is_live(session):
            self._drop(key)
            return None
        return session

    def is_live(self, session: Session) -> bool:
        """Whether a session goes on: nobody has signed out, its time is not up, and its token still has its grant."""
        held = self._tokens is not None and self._tokens.holds(session.entry)
        return held and not session.over and self._monotonic() <= session.ends_at

    def _drop(self, key: bytes) -> None:
        self._sessions.pop(key).over = True


class SignedIn(Permit):
    """What a browser may do that is signed in instead of sending a token."""

    def __init__(self, session: Session, sessions: Sessions) -> None:
        super().__init__(session.entry.grant, session.entry)
        self.session = session
        self._sessions = sessions

    @property
    def is_valid(self) -> bool:
        """Whether the token still has this grant, and nobody has signed out."""
        return self._sessions.is_live(self.session)


def csrf_of(request: Request) -> str | None:
    """What a request from a page that changes something must bring along; None: it brings its token."""
    permit, sessions = permit_of(request), request.app.state.sessions
    if isinstance(permit, SignedIn):
        return permit.session.csrf
    open_csrf: str = sessions.open_csrf
    return open_csrf if permit.entry is None else None


def _surplus(held: Mapping[bytes, Entry]) -> bytes:
    """The oldest of those that the token has which has most."""
    counts = Counter(held.values())
    most = max(counts.values())
    return next(key for key, entry in held.items() if counts[entry] == most)


def cookie_name(host: str) -> str:
    """The name of the cookie: browsers share cookies between the ports of a host, so the port is part of it.

    Args:
        host: the `Host` header.
    """
    port = host.rpartition(":")[2]
    return f"hetrdzv_{port}" if port.isascii() and port.isdigit() and len(port) <= 5 else "hetrdzv"


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
