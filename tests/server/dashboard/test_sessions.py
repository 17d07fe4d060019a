"""Codes that work once, and the cookies they become."""

import pytest

from hetrdzv.auth.tokens import Entry, Grant, Role, Tokens, entries
from hetrdzv.dashboard.sessions import (
    CODE_S,
    MOST_CODES,
    MOST_SESSIONS,
    SESSION_S,
    Session,
    Sessions,
    cookie_name,
)

READ = Grant(Role.READ, "team-a-*")


class HeldTokens(Tokens):
    """Tokens that can be taken away."""

    def take(self, **granted: Grant) -> None:
        self._entries = entries(granted)


class Clock:
    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens() -> HeldTokens:
    return HeldTokens({"secret": READ})


@pytest.fixture
def sessions(tokens: HeldTokens, clock: Clock) -> Sessions:
    return Sessions(tokens, clock)


@pytest.fixture
def entry(tokens: HeldTokens) -> Entry:
    found = tokens.entry("secret")
    assert found is not None
    return found


def signed_in(sessions: Sessions, entry: Entry) -> tuple[str, Session]:
    cookie = sessions.redeem(sessions.code(entry))
    assert cookie is not None
    session = sessions.find(cookie)
    assert session is not None
    return cookie, session


def test_a_code_works_once_and_stands_for_the_token(sessions: Sessions, entry: Entry) -> None:
    code = sessions.code(entry)
    cookie = sessions.redeem(code)
    assert cookie is not None
    found = sessions.find(cookie)
    assert found is not None
    assert found.entry.grant == READ
    assert sessions.redeem(code) is None
    assert sessions.redeem("") is None
    assert sessions.find(code) is None


def test_a_code_works_for_five_minutes(sessions: Sessions, entry: Entry, clock: Clock) -> None:
    in_time, late = sessions.code(entry), sessions.code(entry)
    clock.at = CODE_S
    assert sessions.redeem(in_time) is not None
    clock.at = CODE_S + 0.001
    assert sessions.redeem(late) is None


def test_a_session_ends_after_its_time(sessions: Sessions, entry: Entry, clock: Clock) -> None:
    cookie, _ = signed_in(sessions, entry)
    clock.at = SESSION_S
    assert sessions.find(cookie) is not None
    clock.at = SESSION_S + 0.001
    assert sessions.find(cookie) is None


@pytest.mark.parametrize("now", [{}, {"secret": Grant(Role.ADMIN)}, {"other": READ}])
def test_a_session_ends_with_its_token(
    sessions: Sessions, entry: Entry, tokens: HeldTokens, now: dict[str, Grant]
) -> None:
    code, (cookie, session) = sessions.code(entry), signed_in(sessions, entry)
    tokens.take(**now)
    assert not sessions.is_live(session)
    assert sessions.find(cookie) is None
    assert sessions.redeem(code) is None


def test_who_signs_out_is_out(sessions: Sessions, entry: Entry) -> None:
    cookie, session = signed_in(sessions, entry)
    session.over = True
    assert sessions.find(cookie) is None


def test_codes_and_sessions_take_bounded_memory(sessions: Sessions, entry: Entry) -> None:
    first = sessions.code(entry)
    for _ in range(MOST_CODES):
        sessions.code(entry)
    assert sessions.redeem(first) is None
    cookie, session = signed_in(sessions, entry)
    for _ in range(MOST_SESSIONS):
        sessions.redeem(sessions.code(entry))
    assert sessions.find(cookie) is None
    assert not sessions.is_live(session)


def test_no_token_signs_out_those_of_others(tokens: HeldTokens, sessions: Sessions, entry: Entry) -> None:
    tokens.take(secret=READ, other=READ)
    greedy = tokens.entry("other")
    assert greedy is not None
    cookie, session = signed_in(sessions, entry)
    code = sessions.code(entry)
    for _ in range(MOST_SESSIONS + MOST_CODES):
        sessions.redeem(sessions.code(greedy))
    for _ in range(MOST_CODES):
        sessions.code(greedy)
    assert sessions.find(cookie) is session
    assert sessions.redeem(code) is not None


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1:29400", "hetrdzv_29400"),
        ("[::1]:80", "hetrdzv_80"),
        ("head", "hetrdzv"),
        ("head:1;x=y", "hetrdzv"),
        ("[::1]", "hetrdzv"),
        ("", "hetrdzv"),
    ],
)
def test_servers_on_one_host_have_cookies_of_their_own(host: str, name: str) -> None:
    assert cookie_name(host) == name
