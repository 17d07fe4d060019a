"""The pages: all groups, and one group; their sections; what workers wrote, and where they are."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hetrdzv.api.views import ranks_behind
from hetrdzv.api.workers import shown
from hetrdzv.auth.tokens import Grant, Role
from hetrdzv.dashboard.cache import Section, SectionCache
from hetrdzv.dashboard.group import LARGE, SECTIONS, GroupPage, version
from hetrdzv.dashboard.overview import overview
from hetrdzv.dashboard.render import EVERY_S, HEADERS, page
from hetrdzv.protocol.errors import InvalidRequest, NoRound
from hetrdzv.protocol.pages import StacksReply
from hetrdzv.protocol.stacks import About, Stack, collapsed
from hetrdzv.protocol.texts.raised import raised
from hetrdzv.service.service import Service

MOST_LOGS = 16
"""Of how many workers the page shows what they wrote; hetctl shows it of all."""

MOST_STACKS = 8
"""How many different stacks it shows."""


async def groups(request: Request, service: Service, grant: Grant) -> Response:
    """All groups that the token covers."""
    sections = {"groups": await _overview(request, service, grant)}
    return page(
        "groups_page.html", sections=sections, sections_at="/sections", whole=False, **_frame(request, grant)
    )


async def groups_section(request: Request, service: Service, grant: Grant) -> Response:
    """The same, of an open page that asks again."""
    return _polled(request, await _overview(request, service, grant))


async def group(request: Request, service: Service, grant: Grant) -> Response:
    """Everything about a group; `rows=all`: all its nodes and workers in rows, however many."""
    group_id = request.path_params["group_id"]
    return page(
        "group_page.html",
        sections={name: await _section(request, service, grant, name) for name in SECTIONS},
        sections_at=f"/groups/{group_id}/sections",
        group_id=group_id,
        whole=_whole(request),
        **_frame(request, grant),
    )


async def group_section(request: Request, service: Service, grant: Grant) -> Response:
    """A section of an open page that asks again."""
    name = request.path_params["name"]
    if name not in SECTIONS:
        raise HTTPException(404)
    return _polled(request, await _section(request, service, grant, name))


async def output(request: Request, service: Service, grant: Grant) -> Response:
    """The end of what the workers of a round wrote; without `round` that of the one that others wait for, now."""
    group_id, number = request.path_params["group_id"], _round(request)
    ranks = None if number is not None else ranks_behind(service.group(group_id))[:1]
    try:
        if ranks is not None and not ranks:
            raise NoRound("nobody is waited for any more")
        found = await shown(service, group_id, About.LOGS, ranks, number)
    except NoRound as error:
        return page("nothing.html", why=str(error))
    logs = sorted(found.workers, key=lambda log: (not _raises(log), not log.size))
    return page("output.html", **_some(logs, MOST_LOGS), **_when(found))


async def stacks(request: Request, service: Service, grant: Grant) -> Response:
    """The stacks of the workers of a round, equal ones once; without `round` of the one that runs, now."""
    group_id = request.path_params["group_id"]
    try:
        found = await shown(service, group_id, About.STACKS, None, _round(request))
    except NoRound as error:
        return page("nothing.html", why=str(error))
    verb = ("was", "were") if found.over else ("is", "are")
    return page("stacks.html", verb=verb, **_some(collapsed(found.workers), MOST_STACKS), **_when(found))


async def _section(request: Request, service: Service, grant: Grant, name: str) -> Section:
    service.require_ready()
    cache: SectionCache = request.app.state.cache
    found = service.group(request.path_params["group_id"])
    acts, whole = grant.role >= Role.ADMIN, _whole(request)
    return await cache.get(
        (service, found.group_id, acts, whole, name),
        version(found, name, service.now()),
        lambda: GroupPage(service, found, acts=acts, whole=whole).sections[name],
        in_thread=len(found.nodes) > LARGE,
    )


def _whole(request: Request) -> bool:
    return request.query_params.get("rows") == "all"


async def _overview(request: Request, service: Service, grant: Grant) -> Section:
    service.require_ready()
    cache: SectionCache = request.app.state.cache
    url = f"{request.url.scheme}://{request.url.netloc}"
    many = sum(1 + len(each.nodes) for each in service.groups()) > LARGE
    token_file = request.app.state.token_file
    return await cache.get(
        (service, grant.scope, url),
        int(service.now() / EVERY_S),
        lambda: overview(service, grant, url, token_file),
        in_thread=many,
    )


def _polled(request: Request, section: Section) -> Response:
    """A section; nothing if the page has it already."""
    headers = {**HEADERS, "ETag": section.etag}
    if request.headers.get("if-none-match") == section.etag:
        return Response(status_code=304, headers=headers)
    return Response(section.html, media_type="text/html", headers=headers)


def _frame(request: Request, grant: Grant) -> dict[str, Any]:
    """What the frame around every page shows of who looks at it."""
    return {"who": str(grant) if "session" in request.scope else ""}


def _round(request: Request) -> int | None:
    text = request.query_params.get("round")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10):
        raise InvalidRequest("round: it must be a positive number")
    return int(text)


def _raises(log: Stack) -> bool:
    """Whether an exception is among what a worker wrote last."""
    return any(raised(stream) is not None for stream in (log.text, log.stderr))


def _some(values: Sequence[object], most: int) -> dict[str, Any]:
    return {"shown": values[:most], "more": max(0, len(values) - most)}


def _when(found: StacksReply) -> dict[str, Any]:
    return {"round": found.round, "at": found.at or datetime.now(UTC).isoformat(timespec="milliseconds")}
