"""Routes about one node of a group: join, poll for the directive, report, leave, drain."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from hetrdzv import wire
from hetrdzv.api import problems, views
from hetrdzv.api.dispatch import polls_of, service_of
from hetrdzv.api.permits import permit_of
from hetrdzv.core.commands import Drain, Join, Leave, Renew, Report, StartDaemon, Undrain
from hetrdzv.core.model import Failure
from hetrdzv.errors import StaleRound

router = APIRouter(
    prefix="/v1/groups/{group_id}/nodes/{node_id}",
    tags=["nodes"],
    dependencies=[Depends(problems.known_parameters)],
    responses=problems.RESPONSES,
)

WaitSeconds = Annotated[float, Query(ge=0, le=3600, description="Seconds; never longer than half the lease.")]


def join_command(node_id: str, body: wire.JoinRequest) -> Join:
    """What a join means to the core."""
    return Join(
        node_id=node_id,
        incarnation=body.incarnation,
        slots=body.slots,
        address=body.address,
        port=body.port,
        script_port=body.script_port,
        after_round=body.after_round,
        role=body.role,
        labels=body.labels,
        device=body.device,
        wants_command=body.wants_command,
        wants_members=body.wants_members,
        wants_daemon=body.wants_daemon,
        spec=body.spec.given(),
    )


def report_command(node_id: str, body: wire.ReportRequest) -> Report:
    """What a report means to the core."""
    return Report(
        node_id=node_id,
        incarnation=body.incarnation,
        round=body.round,
        kind=body.kind,
        age_s=body.age_s,
        failure=Failure(**body.failure.model_dump()) if body.failure is not None else None,
        message=body.message,
    )


def daemon_command(node_id: str, body: wire.DaemonRequest) -> StartDaemon:
    """What a daemon for a node means to the core."""
    return StartDaemon(
        node_id=node_id,
        master=body.master,
        incarnation=body.incarnation,
        round=body.round,
        words=tuple(body.words),
    )


async def _answer_poll(
    request: Request, group_id: str, command: Join | Renew, after: str | None, wait_s: float
) -> Response:
    async def hung_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    found = await polls_of(request).answer(hung_up, group_id, command, after, wait_s)
    if found is None:
        return Response(status_code=204)  # that nobody reads
    return views.directive_response(*found)


@router.put("", response_model=wire.DirectiveReply)
async def join(
    request: Request, group_id: wire.Id, node_id: wire.Id, body: wire.JoinRequest, wait: WaitSeconds = 0.0
) -> Response:
    """Join, or ready for the next round. Answers with the directive; with `wait` it may wait for one."""
    if "command" in body.spec.model_fields_set:
        permit_of(request).check_command(group_id)
    return await _answer_poll(request, group_id, join_command(node_id, body), None, wait)


@router.get("/directive", response_model=wire.DirectiveReply)
async def get_directive(
    request: Request,
    group_id: wire.Id,
    node_id: wire.Id,
    incarnation: wire.Id,
    after: Annotated[str | None, Query(max_length=256)] = None,
    wait: WaitSeconds = 0.0,
) -> Response:
    """Long poll: answers when the version differs from `after`, or after `wait` seconds. Renews the lease."""
    return await _answer_poll(request, group_id, Renew(node_id, incarnation), after, wait)


@router.post("/report", response_model=wire.DirectiveReply)
async def report(request: Request, group_id: wire.Id, node_id: wire.Id, body: wire.ReportRequest) -> Response:
    """What became of a member's workers. A report of an older round gets 409 and the current directive."""
    return await _answer_member(request, group_id, node_id, body.incarnation, report_command(node_id, body))


@router.post("/daemon", response_model=wire.DirectiveReply)
async def start_daemon(
    request: Request, group_id: wire.Id, node_id: wire.Id, body: wire.DaemonRequest
) -> Response:
    """The master of a round has this node run the daemon of its launcher; answers with the master's directive."""
    return await _answer_member(
        request, group_id, body.master, body.incarnation, daemon_command(node_id, body)
    )


async def _answer_member(
    request: Request, group_id: str, speaker: str, incarnation: str, command: Report | StartDaemon
) -> Response:
    """Do what a member of a round says and answer with its directive, also where that round is over."""
    service = service_of(request)
    try:
        await service.execute(group_id, command)
    except StaleRound:
        current = service.directive(group_id, speaker, incarnation)
        request.state.directive = views.directive_reply(*current)
        raise
    return views.directive_response(*service.directive(group_id, speaker, incarnation))


@router.delete("", status_code=204)
async def leave(
    request: Request,
    group_id: wire.Id,
    node_id: wire.Id,
    incarnation: wire.Id,
    reason: Annotated[str, Query(max_length=256)] = "",
) -> Response:
    """The agent goes away; its workers are gone."""
    await service_of(request).execute(group_id, Leave(node_id=node_id, incarnation=incarnation, why=reason))
    return Response(status_code=204)


@router.post("/drain", response_model=wire.GroupReply)
async def drain(request: Request, group_id: wire.Id, node_id: wire.Id) -> Response:
    """Take a node out; its agent ends its workers and exits with 4. Outlives restarts of the agent."""
    service = service_of(request)
    return views.group_response(await service.execute(group_id, Drain(node_id)), service.now())


@router.post("/undrain", response_model=wire.GroupReply)
async def undrain(request: Request, group_id: wire.Id, node_id: wire.Id) -> Response:
    """Let a drained node in again."""
    service = service_of(request)
    return views.group_response(await service.execute(group_id, Undrain(node_id)), service.now())
