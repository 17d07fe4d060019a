"""What people ask of groups and nodes: inspect, create, restart, cancel, drain, delete, look back."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from hetrdzv.api import views
from hetrdzv.api.dependencies import (
    GROUP_ERROR_RESPONSES,
    PEOPLES,
    CurrentService,
    JsonRoute,
    NodesQuery,
    RanksQuery,
    Requires,
    RoundQuery,
)
from hetrdzv.api.workers import get_output
from hetrdzv.auth.tokens import Role
from hetrdzv.core.commands import Cancel, Drain, PutSpec, Restart, Undrain
from hetrdzv.protocol.bounds import MAX_JSON_INTEGER, Id
from hetrdzv.protocol.replies import EventsReply, GroupReply, GroupsReply, Plan, WorkerOutputReply
from hetrdzv.protocol.requests import PlanRequest, SpecFields
from hetrdzv.protocol.rounds import RoundsReply
from hetrdzv.protocol.snapshots import SnapshotListReply, UseSnapshotRequest
from hetrdzv.protocol.worker_output import OutputKind
from hetrdzv.service.service import Service

READ, ADMIN = [Depends(Requires(Role.READ))], [Depends(Requires(Role.ADMIN))]

router = APIRouter(
    prefix="/v1/groups", route_class=JsonRoute, tags=["groups"], responses=GROUP_ERROR_RESPONSES
)


@router.get(
    "", response_model=GroupsReply, dependencies=[Depends(Requires(Role.READ, filters_by_scope=True))]
)
async def list_groups(request: Request, service: CurrentService) -> Response:
    """All groups in the scope of the token, in brief."""
    make = views.group_summaries(service, request.state.grant)
    nodes = sum(len(group.nodes) for group in service.groups())
    return await views.json_response(nodes, lambda: GroupsReply(groups=tuple(make())))


@router.get("/{group_id}", response_model=GroupReply, dependencies=READ)
async def get_group(service: CurrentService, group_id: Id, nodes: NodesQuery = "all") -> Response:
    """Everything about a group: spec, state, why, round with members and master, nodes, root cause.

    Without nodes, the members of the round are left out as well.
    """
    return await views.group_response(service, service.group(group_id), nodes)


@router.put("/{group_id}", response_model=GroupReply, dependencies=ADMIN)
async def put_group(service: CurrentService, group_id: Id, body: Annotated[SpecFields, PEOPLES]) -> Response:
    """Create a group with a spec. The same spec again changes nothing, another one gets 409."""
    return await views.execute_and_respond(service, group_id, PutSpec(body))


@router.delete("/{group_id}", status_code=204, response_class=Response, dependencies=ADMIN)
async def delete_group(service: CurrentService, group_id: Id) -> None:
    """Delete a group whose nodes are gone or whose job is over."""
    await service.delete(group_id)


@router.post("/{group_id}/restart", response_model=GroupReply, dependencies=ADMIN)
async def restart_group(service: CurrentService, group_id: Id) -> Response:
    """End the current round so that another forms, or run a finished group again; uses no restart."""
    return await views.execute_and_respond(service, group_id, Restart())


@router.post("/{group_id}/cancel", response_model=GroupReply, dependencies=ADMIN)
async def cancel_group(request: Request, service: CurrentService, group_id: Id) -> Response:
    """Cancel the job: all workers are stopped, agents exit with 3."""
    host = request.client.host if request.client is not None else ""
    return await views.execute_and_respond(
        service, group_id, Cancel(request.state.grant.describe_bearer(host))
    )


@router.post("/{group_id}/nodes/{node_id}/drain", response_model=GroupReply, dependencies=ADMIN)
async def drain(service: CurrentService, group_id: Id, node_id: Id) -> Response:
    """Take a node out: its agent stops its workers and exits with 4. Holds over restarts of the agent."""
    return await views.execute_and_respond(service, group_id, Drain(node_id))


@router.post("/{group_id}/nodes/{node_id}/undrain", response_model=GroupReply, dependencies=ADMIN)
async def undrain(service: CurrentService, group_id: Id, node_id: Id) -> Response:
    """Let a drained node join again."""
    return await views.execute_and_respond(service, group_id, Undrain(node_id))


@router.post("/{group_id}/plan", response_model=Plan, dependencies=READ)
async def plan_group(
    service: CurrentService,
    group_id: Id,
    body: Annotated[PlanRequest, PEOPLES] = PlanRequest(),  # noqa: B008 - it is frozen
) -> Response:
    """What a drain or a restart would do: ranks, master, spares, who restarts. Changes nothing."""
    plan = await service.plan(group_id, body)
    return await views.json_response(len(plan.members), lambda: plan)


# -- what workers do, write and hold -------------------------------------------------------------------------


@router.post("/{group_id}/stacks", response_model=WorkerOutputReply, dependencies=ADMIN)
async def get_stacks(
    service: CurrentService,
    group_id: Id,
    rank: RanksQuery = (),
    round: RoundQuery = 0,  # noqa: A002
) -> Response:
    """The Python stacks of the workers of a round, from their agents; of a round that is over, those of its hang."""
    return await output_response(service, group_id, OutputKind.STACKS, rank, round)


@router.post("/{group_id}/logs", response_model=WorkerOutputReply, dependencies=ADMIN)
async def get_logs(
    service: CurrentService,
    group_id: Id,
    rank: RanksQuery = (),
    round: RoundQuery = 0,  # noqa: A002
) -> Response:
    """The end of what the workers of a round have written, as their agents have kept it, or sent it as they left."""
    return await output_response(service, group_id, OutputKind.LOGS, rank, round)


async def output_response(
    service: Service, group_id: str, about: OutputKind, ranks: Sequence[int], number: int
) -> Response:
    found = await get_output(service, group_id, about, ranks, number or None)
    return await views.json_response(len(found.workers), lambda: found)


@router.get("/{group_id}/snapshots", response_model=SnapshotListReply, dependencies=READ)
async def list_snapshots(service: CurrentService, group_id: Id) -> Response:
    """The snapshots of the job: of which step, whether they are complete, and who has them."""
    group = service.group(group_id)
    return await views.json_response(len(group.nodes), lambda: views.make_snapshots_shown(group))


@router.post("/{group_id}/snapshots", response_model=SnapshotListReply, dependencies=ADMIN)
async def use_snapshot(
    service: CurrentService, group_id: Id, body: Annotated[UseSnapshotRequest, PEOPLES]
) -> Response:
    """Have the next round begin from a snapshot, in place of the newest one; newer ones are undone then."""
    group = await service.execute(group_id, body)
    return await views.json_response(len(group.nodes), lambda: views.make_snapshots_shown(group))


# -- the history ---------------------------------------------------------------------------------------------


@router.get("/{group_id}/rounds", response_model=RoundsReply, dependencies=READ)
async def get_rounds(service: CurrentService, group_id: Id) -> Response:
    """The last 500 rounds: what ended each, what that cost, and what its time went into."""
    rounds = service.rounds(group_id)
    return await views.json_response(len(rounds), lambda: RoundsReply(rounds=rounds))


@router.get("/{group_id}/events", response_model=EventsReply, dependencies=READ)
async def get_events(
    service: CurrentService, group_id: Id, after: Annotated[int, Query(ge=0, le=MAX_JSON_INTEGER)] = 0
) -> Response:
    """The numbered history, from event `after` on; to follow it, ask again with the `last` of the reply."""
    news, last = service.history(group_id, after)
    return await views.json_response(len(news), lambda: EventsReply(events=tuple(news), last=last))
