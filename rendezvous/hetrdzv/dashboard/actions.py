"""What a page does to a group: first the question, with the plan where there is one, then the deed."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from hetrdzv.auth.policy import Permit
from hetrdzv.auth.tokens import Grant
from hetrdzv.core.commands import Cancel, Command, Drain, Restart, Undrain
from hetrdzv.dashboard.render import HEADERS, page
from hetrdzv.protocol.requests.plans import Changes, Plan
from hetrdzv.protocol.states import OVER
from hetrdzv.service.service import Service
from hetrdzv.words.phrasing import count, names
from hetrdzv.words.reasons import ended, why
from hetrdzv.words.times import Clock


class Action(NamedTuple):
    """What asks before something is done, and what does it."""

    ask: Callable[[Request, Service, Grant], Awaitable[Response]]
    do: Callable[[Request, Service, Grant], Awaitable[Response]]


async def ask_restart(request: Request, service: Service, grant: Grant) -> Response:
    """What a restart would do."""
    return _question(request, "Restart", await _plan(request, service, Changes(restart=True)))


async def restart(request: Request, service: Service, grant: Grant) -> Response:
    """As `POST /v1/groups/{group_id}/restart`."""
    return await _do(request, service, Restart())


async def ask_cancel(request: Request, service: Service, grant: Grant) -> Response:
    """What cancelling would do."""
    active = service.group(request.path_params["group_id"]).active_round
    lines = ["All agents of the job exit with status 3."]
    if active is not None:
        workers, nodes = count(active.world_size, "worker"), count(len(active.members), "node")
        lines.insert(0, f"{workers} on {nodes} are stopped.")
    return _question(request, "Cancel the job", lines, "Cancel")


async def cancel(request: Request, service: Service, grant: Grant) -> Response:
    """As `POST /v1/groups/{group_id}/cancel`."""
    host = request.client.host if request.client is not None else ""
    by = Permit(grant, request.app.state.sessions.entry(request)).bearer(host)
    return await _do(request, service, Cancel(by=by, at=datetime.now(UTC).isoformat(timespec="seconds")))


async def ask_delete(request: Request, service: Service, grant: Grant) -> Response:
    """What deleting a group would do."""
    service.group(request.path_params["group_id"])
    lines = [
        "Its history, and what its workers wrote, are forgotten.",
        "Agents that are started for it later run the job again.",
    ]
    return _question(request, "Delete", lines)


async def delete(request: Request, service: Service, grant: Grant) -> Response:
    """As `DELETE /v1/groups/{group_id}`."""
    await service.delete(request.path_params["group_id"])
    return Response(status_code=204, headers={**HEADERS, "HX-Redirect": "/"})


async def ask_drain(request: Request, service: Service, grant: Grant) -> Response:
    """What draining a node would do."""
    node_id = request.path_params["node_id"]
    return _question(request, "Drain", await _plan(request, service, Changes(drain=(node_id,))))


async def drain(request: Request, service: Service, grant: Grant) -> Response:
    """As `POST /v1/groups/{group_id}/nodes/{node_id}/drain`."""
    return await _do(request, service, Drain(request.path_params["node_id"]))


async def ask_undrain(request: Request, service: Service, grant: Grant) -> Response:
    """What letting a node in again would do."""
    service.group(request.path_params["group_id"])
    node_id = request.path_params["node_id"]
    lines = [f"{node_id} may join again once its agent is started there."]
    return _question(request, "Let it in", lines, "Undrain")


async def undrain(request: Request, service: Service, grant: Grant) -> Response:
    """As `POST /v1/groups/{group_id}/nodes/{node_id}/undrain`."""
    return await _do(request, service, Undrain(request.path_params["node_id"]))


ACTIONS: Mapping[str, Action] = {
    "restart": Action(ask_restart, restart),
    "cancel": Action(ask_cancel, cancel),
    "delete": Action(ask_delete, delete),
    "drain": Action(ask_drain, drain),
    "undrain": Action(ask_undrain, undrain),
}
"""By the last word of their paths."""

OF_NODES = ("drain", "undrain")


async def _plan(request: Request, service: Service, changes: Changes) -> list[str]:
    group = service.group(request.path_params["group_id"])
    return told(await service.plans.plan(group, changes, service.now()))


async def _do(request: Request, service: Service, command: Command) -> Response:
    await service.execute(request.path_params["group_id"], command)
    return Response(status_code=204, headers={**HEADERS, "HX-Trigger": "done"})


def _question(request: Request, verb: str, lines: list[str], asked: str = "") -> Response:
    names_it = request.path_params.get("node_id", request.path_params["group_id"])
    title = f"{asked or verb} {names_it}?"
    return page("question.html", verb=verb, path=request.url.path, title=title, lines=lines)


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
