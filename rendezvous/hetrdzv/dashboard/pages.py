"""The pages: all groups, and one group. Asked for as an event stream, a page sends its sections as they change."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Query, Request
from fastapi.responses import Response, StreamingResponse

from hetrdzv.api.dispatch import service_of
from hetrdzv.auth.policy import permit_of
from hetrdzv.auth.tokens import Role
from hetrdzv.dashboard.live import Hub, Render, UntilNews
from hetrdzv.dashboard.render import HEADERS, page
from hetrdzv.dashboard.routing import PageRoute
from hetrdzv.dashboard.scenes import ALL_ROWS, MAPS, ROWS, GroupScene, GroupsScene, frame
from hetrdzv.protocol import wire
from hetrdzv.service.polls.watchers import FOLLOWERS

router = APIRouter(route_class=PageRoute, include_in_schema=False)

Accept = Annotated[str, Header(include_in_schema=False, max_length=4_096)]

_FOLDER = Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
FILES = {
    path.name: (path.read_bytes(), _TYPES[path.suffix])
    for path in sorted(_FOLDER.rglob("*"))
    if path.suffix in _TYPES
}
"""What pages load, by name, with its type."""


@router.get("/static/{name}")
async def static(name: wire.ShortText) -> Response:
    """A script, a style sheet, a picture: the same for everybody."""
    found = FILES.get(name)
    if found is None:
        raise HTTPException(404)
    headers = {**HEADERS, "Cache-Control": "no-cache"}  # of another version, an upgrade would be half seen
    return Response(found[0], media_type=found[1], headers=headers)


@router.get("/")
async def groups(request: Request, accept: Accept = "") -> Response:
    """All groups that the token covers."""
    service, permit = service_of(request), permit_of(request)
    scene = GroupsScene(service, permit.grant)
    if "text/event-stream" in accept:
        return _follow(request, (service, permit.grant.scope), lambda: (scene.sections, asyncio.sleep))
    return page("groups_page.html", sections=await scene.sections(), **frame(permit))


@router.get("/groups/{group_id}")
async def group(
    request: Request, group_id: wire.Id, accept: Accept = "", rows: Annotated[str, Query(max_length=8)] = ""
) -> Response:
    """Everything about a group; `rows=all`: all its nodes in rows, however many."""
    service, permit = service_of(request), permit_of(request)
    acts = permit.grant.role >= Role.ADMIN
    whole = rows == "all"
    key = (service, group_id, acts, whole)
    scene = GroupScene(service, group_id, acts=acts, rows=ALL_ROWS if whole else ROWS)
    if "text/event-stream" in accept:
        service.group(group_id)

        async def until_news(most_s: float) -> object:
            return await service.wait(group_id, FOLLOWERS, most_s)

        return _follow(request, key, lambda: (scene.sections, until_news))
    sections = await _hub(request).sections(key) or await scene.sections()
    return page(
        "group_page.html", sections=sections, maps=MAPS, group_id=group_id, whole=whole, **frame(permit)
    )


def _follow(request: Request, key: object, make: Callable[[], tuple[Render, UntilNews]]) -> Response:
    """The page with this key as an event stream."""
    stream: AsyncIterator[bytes] = _hub(request).watch(key, permit_of(request), make)
    return StreamingResponse(stream, media_type="text/event-stream", headers=dict(HEADERS))


def _hub(request: Request) -> Hub:
    hub: Hub = request.app.state.hub
    return hub
