"""What agents send all the time, without the cost of a framework: polls, joins and reports.

Answers the ordinary ones; all others, and reports that are refused, go the long way to nodes.py, which allows the same
and explains mistakes. The API's document describes those routes.
"""

import json
import re
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hetrdzv.api import views
from hetrdzv.api.commands import join_command, report_command, said
from hetrdzv.api.dispatch import polls_in
from hetrdzv.api.http.body import PARSED
from hetrdzv.api.http.calling import calling
from hetrdzv.core.commands import Join, Renew
from hetrdzv.core.memo import kept
from hetrdzv.core.model import Group
from hetrdzv.protocol import wire
from hetrdzv.protocol.errors import Refused
from hetrdzv.protocol.ids import MAX_ID_LENGTH
from hetrdzv.protocol.keepalive import SOCKET_HEADER, name_of
from hetrdzv.service.polls.directives import Told, tell
from hetrdzv.service.progress.progress import Said

_ID = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_PATH = re.compile(rf"/v1/groups/({_ID})/nodes/({_ID})(/directive|/report)?")
_QUERY = re.compile(rb"(incarnation|after|wait)=([A-Za-z0-9._-]*)(?:&|$)")
_SECONDS = re.compile(r"[0-9]{1,4}(\.[0-9]{1,9})?")
MAX_WAIT_S = 3600.0
MAX_VERSION_LENGTH = 256

_SOCKET_HEADER = SOCKET_HEADER.lower().encode()

REPLIES_KEPT = 4
"""How many replies to waiting nodes are kept per group; all its nodes get the same."""

Body = TypeVar("Body", bound=BaseModel)


class ShortRoutes:
    """ASGI middleware that answers ordinary requests of agents.

    Args:
        app: answers everything else.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        place = _PATH.fullmatch(scope["path"])
        if place is None or max(map(len, place.groups(""))) > MAX_ID_LENGTH:
            await self._app(scope, receive, send)
            return
        match scope["method"], place[3]:
            case "GET", "/directive":
                if (poll := _plain_poll(place, scope)) is not None:
                    await _answer(scope, receive, send, poll)
                    return
            case ("PUT", None) | ("POST", "/directive") if _has_json(scope):
                message = await receive()
                parse = _join if place[3] is None else _poll
                if (poll := parse(scope, place, message.get("body", b""))) is not None:
                    del message  # a poll may wait for long, and its body be large
                    scope.get(PARSED, _nothing)()
                    await _answer(scope, receive, send, poll)
                    return
                receive = _again(message, receive)
            case "POST", "/report" if _has_json(scope):
                message = await receive()
                if await _report(scope, receive, send, place, message.get("body", b"")):
                    return
                receive = _again(message, receive)
        await self._app(scope, receive, send)


# -- polls and joins ----------------------------------------------------------------------------------------------


class _Poll(NamedTuple):
    """What a request asks; see `Polls.answer`."""

    group_id: str
    command: Join | Renew
    after: str | None
    wait_s: float
    direct: bool = False
    said: Said | None = None


def _plain_poll(place: re.Match[str], scope: Scope) -> _Poll | None:
    """What a request asks, if it is an ordinary poll."""
    given = _query(scope["query_string"])
    if given is None or "incarnation" not in given:
        return None
    incarnation, after, wait_s = given["incarnation"], given.get("after"), _wait_s(given)
    if len(incarnation) > MAX_ID_LENGTH or not re.fullmatch(_ID, incarnation) or wait_s is None:
        return None
    if after is not None and len(after) > MAX_VERSION_LENGTH:
        return None
    return _Poll(place[1], Renew(place[2], incarnation), after, wait_s, _is_direct(scope))


def _join(scope: Scope, place: re.Match[str], data: bytes) -> _Poll | None:
    given = _query(scope["query_string"]) if scope["query_string"] else {}
    wait_s = _wait_s(given) if given is not None and given.keys() <= {"wait"} else None
    body = _parsed(wire.JoinRequest, data)
    if wait_s is None or body is None or "command" in body.spec.model_fields_set:
        return None
    return _Poll(place[1], join_command(place[2], body), None, wait_s)


def _poll(scope: Scope, place: re.Match[str], data: bytes) -> _Poll | None:
    body = _parsed(wire.PollRequest, data)
    if scope["query_string"] or body is None:
        return None
    command = Renew(place[2], body.incarnation)
    return _Poll(place[1], command, body.after, body.wait_s, _is_direct(scope), said(body))


async def _answer(scope: Scope, receive: Receive, send: Send, poll: _Poll) -> None:
    polls, node_id = polls_in(scope), poll.command.node_id
    with calling(scope, receive) as caller:
        if caller.gone:  # it has asked again meanwhile, or will
            return
        told = await polls.answer(
            caller,
            poll.group_id,
            poll.command,
            poll.after,
            poll.wait_s,
            direct=poll.direct,
            said=poll.said,
        )
    if told is None:
        return
    asked = poll.said is not None and polls.service.questions.next(poll.group_id, node_id) is not None
    await _send(send, views.asking_json(polls.service, node_id, told) if asked else _reply(told))


def _is_direct(scope: Scope) -> bool:
    """Whether no proxy is between us and the agent: it sees the same address of its connection as we do."""
    own = _header(scope, _SOCKET_HEADER)
    return own is not None and own.decode("latin-1") == name_of(scope.get("client"))


# -- reports: whether they were answered ---------------------------------------------------------------------------


async def _report(scope: Scope, receive: Receive, send: Send, place: re.Match[str], data: bytes) -> bool:
    body = _parsed(wire.ReportRequest, data)
    command = report_command(place[2], body) if body is not None else None
    if scope["query_string"] or body is None or command is None:
        return False
    service = polls_in(scope).service
    try:
        with calling(scope, receive) as caller:
            if caller.gone:
                return True
        await service.execute(place[1], command)
        await _send(send, _reply(tell(service, place[1], place[2], body.incarnation)))
    except Refused:
        return False
    return True


# -- all of them --------------------------------------------------------------------------------------------------


def _parsed(model: type[Body], data: bytes) -> Body | None:
    """A body; None if there is anything wrong with it, or more in it than this version knows."""
    try:
        return model.model_validate(json.loads(data))
    except (ValidationError, ValueError, RecursionError):
        return None


def _has_json(scope: Scope) -> bool:
    return _header(scope, b"content-type") == b"application/json"


def _again(first: Message, receive: Receive) -> Receive:
    """A channel on which the first message comes once more."""
    messages = [first]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


def _header(scope: Scope, wanted: bytes) -> bytes | None:
    return next((value for name, value in scope["headers"] if name == wanted), None)


def _query(query: bytes) -> Mapping[str, str] | None:
    """The parameters of a request, each once and without escapes; None if there is anything else."""
    found: dict[str, str] = {}
    end = 0
    for one in _QUERY.finditer(query):
        name = one[1].decode()
        if one.start() != end or name in found:
            return None
        found[name], end = one[2].decode(), one.end()
    return found if end == len(query) and not query.endswith(b"&") else None


def _wait_s(given: Mapping[str, str]) -> float | None:
    """How long the answer may take (seconds); None if that is not an ordinary number."""
    wait = given.get("wait", "0")
    return float(wait) if _SECONDS.fullmatch(wait) and float(wait) <= MAX_WAIT_S else None


async def _send(send: Send, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _reply(told: Told) -> bytes:
    """A directive as JSON. All waiting nodes of a group get the same."""
    group, directive, pace = told
    if (
        directive.start is not None
        or directive.root_cause is not None
        or directive.replaced
        or directive.cancellation
    ):
        return views.directive_json(group, directive, pace)
    known = _replies(group)
    key = (directive.version, directive.reason, int(directive.clock), pace)
    if key not in known:
        if len(known) >= REPLIES_KEPT:
            known.clear()
        known[key] = views.directive_json(group, directive, pace)
    return known[key]


@kept
def _replies(group: Group) -> dict[tuple[object, ...], bytes]:
    return {}


def _nothing() -> None:
    """Where nobody counts bodies."""
