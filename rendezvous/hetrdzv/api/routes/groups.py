"""Routes about groups: inspect, create, restart, cancel, delete, follow."""

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from hetrdzv.api import views
from hetrdzv.api.bound import Handlers
from hetrdzv.api.commands import cancellation
from hetrdzv.api.dispatch import service_of
from hetrdzv.api.plans import in_words
from hetrdzv.api.workers import shown
from hetrdzv.auth.policy import Permit, permit_of
from hetrdzv.core.commands import Put, Restart
from hetrdzv.protocol import codec
from hetrdzv.protocol.http import routes
from hetrdzv.protocol.pages import EventsReply, GroupsReply, LogsReply, StacksReply
from hetrdzv.protocol.requests.joining import SpecFields
from hetrdzv.protocol.requests.plans import Changes
from hetrdzv.protocol.rooms.stacks import About
from hetrdzv.service.history import Place, follow
from hetrdzv.service.service import Service

handlers = Handlers()

KEEPALIVE_S = 15.0
"""A followed history sends something at least this often, so that both ends notice a dead connection (seconds)."""


@handlers(routes.GROUPS)
async def list_groups(request: Request) -> Response:
    """All groups in the scope of the token, in brief."""
    service, grant = service_of(request), permit_of(request).grant
    now = service.now()
    shown = [group for group in service.groups() if grant.covers(group.group_id)]
    aside = [(name, why) for name, why in service.quarantined().items() if grant.covers(name)]

    def reply() -> GroupsReply:
        served = [views.group_summary(group, now) for group in shown]
        return GroupsReply(groups=(*served, *(views.quarantined_summary(*each) for each in aside)))

    return await views.made(sum(len(group.nodes) for group in shown), reply)


@handlers(routes.GROUP)
async def get_group(
    request: Request, group_id: str, nodes: str, after: str | None, limit: int | None
) -> Response:
    """Everything about a group: spec, state, why, round with members and master, nodes, root cause.

    Of a large group some of the nodes, or none: members of the round are left out with them.
    """
    service = service_of(request)
    page = views.Page(after, limit) if nodes == "all" else views.NONE
    return await views.group_response(service, service.group(group_id), page)


@handlers(routes.PUT)
async def put_group(request: Request, group_id: str, body: SpecFields, nodes: str) -> Response:
    """Create a group with a spec. The same spec again changes nothing, another one gets 409."""
    return await views.changed(service_of(request), group_id, Put(body.given()), nodes)


@handlers(routes.DELETE)
async def delete_group(request: Request, group_id: str) -> None:
    """Delete a group whose nodes are gone or whose job is over."""
    await service_of(request).delete(group_id)


@handlers(routes.RESTART)
async def restart_group(request: Request, group_id: str, nodes: str) -> Response:
    """End the current round so that another forms, or run a finished group again; uses no restart."""
    return await views.changed(service_of(request), group_id, Restart(), nodes)


@handlers(routes.CANCEL)
async def cancel_group(request: Request, group_id: str, nodes: str) -> Response:
    """Cancel the job: all workers are stopped, agents exit with 3."""
    return await views.changed(service_of(request), group_id, cancellation(request), nodes)


@handlers(routes.PLAN)
async def plan_group(request: Request, group_id: str, body: Changes) -> Response:
    """What would happen if nodes came or went: ranks, master, spares, who restarts. Changes nothing."""
    service = service_of(request)
    plan = await service.plans.plan(service.group(group_id), body, service.now())
    nodes = len(plan.members) + len(plan.spares)
    return await views.made(nodes, lambda: in_words(plan))


@handlers(routes.STACKS_OF)
async def get_stacks(request: Request, group_id: str, rank: list[int] | None, round: int | None) -> Response:  # noqa: A002
    """The Python stacks of the workers of the running round, now, from their agents. Changes nothing.

    Of a round that is over those that were taken when it hung.
    """
    found = await shown(service_of(request), group_id, About.STACKS, rank, round)
    at = found.at.isoformat(timespec="milliseconds") if found.at is not None else None
    return await views.made(
        len(found.told),
        lambda: StacksReply(round=found.round, stacks=found.told, over=found.over, at=at),
    )


@handlers(routes.LOGS_OF)
async def get_logs(request: Request, group_id: str, rank: list[int] | None, round: int | None) -> Response:  # noqa: A002
    """The end of what the workers of a round have written, from their agents. Changes nothing.

    Of a round that is over what agents that are still here have kept, or have sent as they left.
    """
    found = await shown(service_of(request), group_id, About.LOGS, rank, round)
    return await views.made(
        len(found.told), lambda: LogsReply(round=found.round, logs=found.told, over=found.over)
    )


@handlers(routes.EVENTS)
async def get_events(request: Request, group_id: str, after: int, last_event_id: str | None) -> Response:
    """The numbered history; with `Accept: text/event-stream` it follows (to resume: `Last-Event-ID`)."""
    service = service_of(request)
    news, last = service.history(group_id, after)
    if "text/event-stream" in request.headers.get("accept", ""):
        asked = Place(after) if last_event_id is None else Place.parse(last_event_id)
        place = asked.within(service.group(group_id), last)
        stream = _stream(service, group_id, place, permit_of(request))
        return StreamingResponse(
            stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )
    return await views.made(
        len(news), lambda: EventsReply(events=tuple(map(views.event_reply, news)), last=last)
    )


async def _stream(service: Service, group_id: str, after: Place, entry: Permit) -> AsyncIterator[str]:
    """Server-sent events: one per event of the history, a comment when nothing happens.

    Begins with the id of the place it starts from, for a client that is cut off before the first event. Ends when the
    token of the request is no longer valid.
    """
    yield f"id: {after}\n: follows\n\n"
    async for news in follow(service, group_id, after, KEEPALIVE_S):
        if not entry.is_valid:
            return
        if news is None:
            yield ": quiet\n\n"
        else:
            place, stored = news
            yield f"id: {place}\ndata: {codec.write(views.event_reply(stored), nulls=True).decode()}\n\n"
