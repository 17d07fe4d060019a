"""The pages: all groups, and one group. Asked for as an event stream, a page sends its sections as they change."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from hetrdzv.api.bound import Handlers
from hetrdzv.api.dispatch import service_of
from hetrdzv.api.views import ranks_behind
from hetrdzv.api.workers import Shown, shown
from hetrdzv.auth.policy import permit_of
from hetrdzv.auth.tokens import Role
from hetrdzv.dashboard import routing
from hetrdzv.dashboard.live import Hub, Render, UntilNews
from hetrdzv.dashboard.overview import GroupsScene
from hetrdzv.dashboard.render import HEADERS, own_url, page
from hetrdzv.dashboard.scenes import MAPS, GroupScene, frame
from hetrdzv.protocol.errors import NoRound
from hetrdzv.protocol.rooms.stacks import About, Stack, collapsed
from hetrdzv.protocol.texts.raised import raised
from hetrdzv.service.polls.watchers import FOLLOWERS

handlers = Handlers()

MOST_LOGS = 16
"""Of how many workers the page shows what they wrote; hetctl shows it of all."""

MOST_STACKS = 8
"""How many different stacks it shows."""

_FOLDER = Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
FILES = {
    path.name: (path.read_bytes(), _TYPES[path.suffix])
    for path in sorted(_FOLDER.rglob("*"))
    if path.suffix in _TYPES
}
"""What pages load, by name, with its type."""


@handlers(routing.STATIC)
async def static(request: Request, name: str) -> Response:
    """A script, a style sheet, a picture: the same for everybody."""
    file = FILES.get(name)
    if file is None:
        raise HTTPException(404)
    headers = {**HEADERS, "Cache-Control": "no-cache"}  # of another version, an upgrade would be half seen
    return Response(file[0], media_type=file[1], headers=headers)


@handlers(routing.GROUPS)
async def groups(request: Request) -> Response:
    """All groups that the token covers."""
    service, permit = service_of(request), permit_of(request)
    url = own_url(request)
    scene = GroupsScene(service, permit.grant, url, request.app.state.token_file)
    if "text/event-stream" in request.headers.get("accept", ""):
        return _follow(request, (service, permit.grant.scope, url), lambda: (scene.sections, asyncio.sleep))
    return page("groups_page.html", sections=await scene.sections(), **frame(request))


@handlers(routing.GROUP)
async def group(request: Request, group_id: str, rows: str) -> Response:
    """Everything about a group; `rows=all`: all its nodes and workers in rows, however many."""
    service, permit = service_of(request), permit_of(request)
    acts = permit.grant.role >= Role.ADMIN
    whole = rows == "all"
    key = (service, group_id, acts, whole)
    scene = GroupScene(service, group_id, acts=acts, whole=whole)
    if "text/event-stream" in request.headers.get("accept", ""):
        service.group(group_id)

        async def until_news(most_s: float) -> object:
            return await service.wait(group_id, FOLLOWERS, most_s)

        return _follow(request, key, lambda: (scene.sections, until_news))
    sections = await _hub(request).sections(key) or await scene.sections()
    return page(
        "group_page.html", sections=sections, maps=MAPS, group_id=group_id, whole=whole, **frame(request)
    )


@handlers(routing.OUTPUT)
async def output(request: Request, group_id: str, round: int | None) -> Response:  # noqa: A002
    """The end of what the workers of a round wrote; without `round` that of the one that others wait for, now."""
    service = service_of(request)
    ranks = None if round is not None else ranks_behind(service.group(group_id))[:1]
    try:
        if ranks is not None and not ranks:
            raise NoRound("nobody is waited for any more")
        found = await shown(service, group_id, About.LOGS, ranks, round)
    except NoRound as error:
        return page("nothing.html", why=str(error))
    logs = sorted(found.told, key=lambda log: (not _raises(log), not log.size))
    return page("output.html", **_some(logs, MOST_LOGS), **_when(found))


@handlers(routing.STACKS)
async def stacks(request: Request, group_id: str, round: int | None) -> Response:  # noqa: A002
    """The stacks of the workers of a round, equal ones once; without `round` of the one that runs, now."""
    try:
        found = await shown(service_of(request), group_id, About.STACKS, None, round)
    except NoRound as error:
        return page("nothing.html", why=str(error))
    verb = ("was", "were") if found.over else ("is", "are")
    return page("stacks.html", verb=verb, **_some(collapsed(found.told), MOST_STACKS), **_when(found))


def _raises(log: Stack) -> bool:
    """Whether an exception is among what a worker wrote last."""
    return any(raised(stream) is not None for stream in (log.text, log.stderr))


def _some(values: Sequence[object], most: int) -> dict[str, Any]:
    return {"shown": values[:most], "more": max(0, len(values) - most)}


def _when(found: Shown) -> dict[str, Any]:
    at = found.at or datetime.now(UTC)
    return {"round": found.round, "at": at.isoformat(timespec="milliseconds")}


def _follow(request: Request, key: object, make: Callable[[], tuple[Render, UntilNews]]) -> Response:
    """The page with this key as an event stream."""
    stream: AsyncIterator[bytes] = _hub(request).watch(key, permit_of(request), make)
    return StreamingResponse(stream, media_type="text/event-stream", headers=dict(HEADERS))


def _hub(request: Request) -> Hub:
    hub: Hub = request.app.state.hub
    return hub
