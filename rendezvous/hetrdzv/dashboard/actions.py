"""What a page does to a group: first the question, with the plan where there is one, then the deed."""

from starlette.requests import Request
from starlette.responses import Response

from hetrdzv.api.bound import Handlers
from hetrdzv.api.commands import cancellation
from hetrdzv.api.dispatch import service_of
from hetrdzv.auth.hosts import same_origin
from hetrdzv.core.commands import Command, Drain, Restart, Undrain
from hetrdzv.dashboard import routing
from hetrdzv.dashboard.render import HEADERS, page
from hetrdzv.dashboard.sessions import csrf_of
from hetrdzv.protocol.errors import ForeignHost
from hetrdzv.protocol.requests.plans import Changes, Plan
from hetrdzv.protocol.states import OVER
from hetrdzv.words.phrasing import count, names
from hetrdzv.words.reasons import ended, why
from hetrdzv.words.times import Clock

CSRF_HEADER = "x-csrf-token"


def require_own_page(request: Request) -> None:
    """Check that a request which changes something comes from a page of this server.

    A browser that is signed in sends its cookie with whatever any page makes it send; so pages bring along a word that
    only they know. A program that sends its token needs none.

    Raises:
        ForeignHost: it does not.
    """
    expected, headers = csrf_of(request), request.headers
    if expected is None:
        return
    if headers.get(CSRF_HEADER) != expected or not same_origin(
        headers.get("origin"), headers.get("host", "")
    ):
        raise ForeignHost(
            "this request does not come from a page of this server that is up to date: reload the page"
        )


handlers = Handlers()


@handlers(routing.ASK_RESTART)
async def ask_restart(request: Request, group_id: str) -> Response:
    """What a restart would do."""
    plan = await _plan(request, group_id, Changes(restart=True))
    return _question(group_id, "Restart", f"/groups/{group_id}/restart", f"Restart {group_id}?", told(plan))


@handlers(routing.RESTART)
async def restart(request: Request, group_id: str) -> Response:
    """As `POST /v1/groups/{group_id}/restart`."""
    return await _do(request, group_id, Restart())


@handlers(routing.ASK_CANCEL)
async def ask_cancel(request: Request, group_id: str) -> Response:
    """What cancelling would do."""
    group = service_of(request).group(group_id)
    active = group.active_round
    lines = ["All agents of the job exit with status 3."]
    if active is not None:
        lines.insert(
            0, f"{count(active.world_size, 'worker')} on {count(len(active.members), 'node')} are stopped."
        )
    return _question(group_id, "Cancel the job", f"/groups/{group_id}/cancel", f"Cancel {group_id}?", lines)


@handlers(routing.CANCEL)
async def cancel(request: Request, group_id: str) -> Response:
    """As `POST /v1/groups/{group_id}/cancel`."""
    return await _do(request, group_id, cancellation(request))


@handlers(routing.ASK_DELETE)
async def ask_delete(request: Request, group_id: str) -> Response:
    """What deleting a group would do."""
    service_of(request).group(group_id)
    lines = [
        "Its history, and what its workers wrote, are forgotten.",
        "Agents that are started for it later run the job again.",
    ]
    return _question(group_id, "Delete", f"/groups/{group_id}/delete", f"Delete {group_id}?", lines)


@handlers(routing.DELETE)
async def delete(request: Request, group_id: str) -> Response:
    """As `DELETE /v1/groups/{group_id}`."""
    require_own_page(request)
    await service_of(request).delete(group_id)
    return Response(status_code=204, headers={**HEADERS, "HX-Redirect": "/"})


@handlers(routing.ASK_DRAIN)
async def ask_drain(request: Request, group_id: str, node_id: str) -> Response:
    """What draining a node would do."""
    plan = await _plan(request, group_id, Changes(drain=(node_id,)))
    path = f"/groups/{group_id}/nodes/{node_id}/drain"
    return _question(group_id, "Drain", path, f"Drain {node_id}?", told(plan))


@handlers(routing.DRAIN)
async def drain(request: Request, group_id: str, node_id: str) -> Response:
    """As `POST /v1/groups/{group_id}/nodes/{node_id}/drain`."""
    return await _do(request, group_id, Drain(node_id))


@handlers(routing.ASK_UNDRAIN)
async def ask_undrain(request: Request, group_id: str, node_id: str) -> Response:
    """What letting a node in again would do."""
    service_of(request).group(group_id)
    path = f"/groups/{group_id}/nodes/{node_id}/undrain"
    lines = [f"{node_id} may join again once its agent is started there."]
    return _question(group_id, "Let it in", path, f"Let {node_id} in again?", lines)


@handlers(routing.UNDRAIN)
async def undrain(request: Request, group_id: str, node_id: str) -> Response:
    """As `POST /v1/groups/{group_id}/nodes/{node_id}/undrain`."""
    return await _do(request, group_id, Undrain(node_id))


async def _plan(request: Request, group_id: str, changes: Changes) -> Plan:
    service = service_of(request)
    return await service.plans.plan(service.group(group_id), changes, service.now())


async def _do(request: Request, group_id: str, command: Command) -> Response:
    require_own_page(request)
    await service_of(request).execute(group_id, command)
    return Response(status_code=204, headers={**HEADERS, "HX-Trigger": "done"})


def _question(group_id: str, verb: str, path: str, title: str, lines: list[str]) -> Response:
    return page("question.html", group_id=group_id, verb=verb, path=path, title=title, lines=lines)


def told(plan: Plan) -> list[str]:
    """A plan in a few sentences."""
    if plan.state in OVER:
        return [f"Nothing changes: the job is over, it {ended(plan.state)}."]
    lines = []
    if plan.stops:
        lines.append(f"Workers of {names(plan.stops)} are stopped for good.")
    if plan.restarted:
        lines.append(f"Workers of {names(plan.restarted)} are stopped and started again.")
    if plan.world_size and plan.round != plan.was_round:
        size = (
            f"{plan.was_world_size} to {plan.world_size}"
            if plan.was_world_size != plan.world_size
            else (f"{plan.world_size}, as before")
        )
        lines.append(f"Round {plan.round} follows, with {plan.master} as master. World size: {size}.")
    elif plan.world_size:
        lines.append(f"Round {plan.round} goes on.")
    else:
        lines.append(f"Then no round runs: {why(plan.reason, Clock(plan.clock))}.")
    if plan.moves:
        lines.append(f"Ranks change on {names(plan.moves)}.")
    if plan.spares and plan.world_size:
        lines.append(f"Spare: {names(spare.node_id for spare in plan.spares)}.")
    if plan.in_s >= 1:
        lines.append(f"Before that, the group waits for about {plan.in_s:.0f} s.")
    lines.append(f"Restarts used after that: {plan.restarts}.")
    return lines
