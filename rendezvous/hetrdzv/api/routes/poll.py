"""The route that agents use all the time, `GET .../directive`, without the cost of a framework.

Answers ordinary polls; all others go to nodes.py, which allows the same and explains mistakes. The API's document
describes that route.
"""

import re
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from hetrdzv.api import views
from hetrdzv.api.dispatch import polls_in
from hetrdzv.api.http.calling import calling
from hetrdzv.core.commands import Renew
from hetrdzv.core.memo import kept
from hetrdzv.core.model import Group
from hetrdzv.protocol.ids import MAX_ID_LENGTH
from hetrdzv.protocol.keepalive import SOCKET_HEADER, name_of
from hetrdzv.service.directives import Told

_ID = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_PATH = re.compile(rf"/v1/groups/({_ID})/nodes/({_ID})/directive")
_QUERY = re.compile(rb"(incarnation|after|wait)=([A-Za-z0-9._-]*)(?:&|$)")
_SECONDS = re.compile(r"[0-9]{1,4}(\.[0-9]{1,9})?")
MAX_WAIT_S = 3600.0
MAX_VERSION_LENGTH = 256

_SOCKET_HEADER = SOCKET_HEADER.lower().encode()

REPLIES_KEPT = 4
"""How many replies to waiting nodes are kept per group; all its nodes get the same."""


class PollRoute:
    """ASGI middleware that answers polls.

    Args:
        app: answers everything else.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        poll = _plain_poll(scope)
        if poll is None:
            await self._app(scope, receive, send)
            return
        group_id, command, after, wait_s = poll
        with calling(scope, receive) as caller:
            polls, direct = polls_in(scope), _is_direct(scope)
            found = await polls.answer(caller, group_id, command, after, wait_s, direct=direct)
        if found is not None:
            await _send(send, _body(*found))


def _plain_poll(scope: Scope) -> tuple[str, Renew, str | None, float] | None:
    """What a request asks, if it is an ordinary poll."""
    if scope["method"] != "GET":
        return None
    place = _PATH.fullmatch(scope["path"])
    if place is None:
        return None
    given = _query(scope["query_string"])
    if given is None or "incarnation" not in given:
        return None
    incarnation, after, wait = given["incarnation"], given.get("after"), given.get("wait", "0")
    names = (*place.groups(), incarnation)
    if max(map(len, names)) > MAX_ID_LENGTH or not re.fullmatch(_ID, incarnation):
        return None
    if (after is not None and len(after) > MAX_VERSION_LENGTH) or not _SECONDS.fullmatch(wait):
        return None
    wait_s = float(wait)
    return (place[1], Renew(place[2], incarnation), after, wait_s) if wait_s <= MAX_WAIT_S else None


def _is_direct(scope: Scope) -> bool:
    """Whether no proxy is between us and the agent: it sees the same address of its connection as we do."""
    own = next((value for name, value in scope["headers"] if name == _SOCKET_HEADER), None)
    return own is not None and own.decode("latin-1") == name_of(scope.get("client"))


def _query(query: bytes) -> Mapping[str, str] | None:
    """The parameters of a poll, each once and without escapes; None if there is anything else."""
    found: dict[str, str] = {}
    end = 0
    for one in _QUERY.finditer(query):
        name = one[1].decode()
        if one.start() != end or name in found:
            return None
        found[name], end = one[2].decode(), one.end()
    return found if end == len(query) and not query.endswith(b"&") else None


def _body(*found: Any) -> bytes:
    """The reply to a poll. All waiting nodes of a group get the same."""
    told: Told = found
    group, directive, pace = told
    if directive.start is not None or directive.root_cause is not None:
        return views.directive_json(group, directive, pace)
    known = _replies(group)
    key = (directive.version, directive.why, pace)
    if key not in known:
        if len(known) >= REPLIES_KEPT:
            known.clear()
        known[key] = views.directive_json(group, directive, pace)
    return known[key]


@kept
def _replies(group: Group) -> dict[tuple[object, ...], bytes]:
    return {}


async def _send(send: Send, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
