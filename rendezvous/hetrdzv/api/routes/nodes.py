"""Routes about one node of a group: join, poll for the directive, report, leave, drain."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from hetrdzv.api import problems, views
from hetrdzv.api.commands import daemon_command, join_command, report_command, said, stacks
from hetrdzv.api.dispatch import polls_of, service_of
from hetrdzv.api.http.calling import calling
from hetrdzv.api.http.limits import SMALL_BODY_BYTES
from hetrdzv.api.lenient import LenientRoute, ignored
from hetrdzv.api.routes.groups import NodesShown
from hetrdzv.api.shares import shares_reply
from hetrdzv.auth.policy import permit_of
from hetrdzv.core.commands import Drain, Join, Leave, Renew, Report, StartDaemon, Undrain
from hetrdzv.core.rounds.transitions import require_speaker
from hetrdzv.protocol import wire
from hetrdzv.protocol.errors import StaleRound
from hetrdzv.protocol.states import ReportKind
from hetrdzv.protocol.versions import is_newer
from hetrdzv.service.polls.directives import tell
from hetrdzv.service.progress.progress import Said
from hetrdzv.service.shares import decided

router = APIRouter(
    prefix="/v1/groups/{group_id}/nodes/{node_id}",
    tags=["nodes"],
    route_class=LenientRoute,
    dependencies=[Depends(problems.known_parameters)],
    responses=problems.RESPONSES,
)

LARGE_WAIT_S = 1.0
"""How long a poll with a large body may wait (seconds)."""

WaitSeconds = Annotated[float, Query(ge=0, le=3600, description="Seconds; at most half the lease.")]


async def _answer_poll(
    request: Request,
    group_id: str,
    command: Join | Renew,
    after: str | None,
    wait_s: float,
    words: Said | None = None,
) -> Response:
    polls = polls_of(request)
    if len(await request.body()) > SMALL_BODY_BYTES:  # which is kept until the answer
        wait_s = min(wait_s, LARGE_WAIT_S)
    with calling(request.scope, request.receive) as caller:
        found = await polls.answer(caller, group_id, command, after, wait_s, said=words)
    if found is None:
        return Response(status_code=204)  # nobody reads it
    if words is None:
        return views.directive_response(*found)
    return Response(views.asking_json(polls.service, command.node_id, found), media_type="application/json")


@router.put("", response_model=wire.DirectiveReply)
async def join(
    request: Request,
    group_id: wire.Id,
    node_id: wire.Id,
    body: wire.Checked[wire.JoinRequest],
    wait: WaitSeconds = 0.0,
) -> Response:
    """Join, or ready for the next round. Replies with the directive; with `wait` it may wait for one."""
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
    """Long poll: replies once the version differs from `after`, or after `wait` seconds. Renews the lease.

    Ordinary polls never get here: short.py answers them.
    """
    return await _answer_poll(request, group_id, Renew(node_id, incarnation), after, wait)


@router.post("/directive", response_model=wire.DirectiveReply)
async def poll(
    request: Request, group_id: wire.Id, node_id: wire.Id, body: wire.Checked[wire.PollRequest]
) -> Response:
    """The same poll, which also says how far the node's workers have come. May be answered with a question.

    Ordinary polls never get here: short.py answers them.
    """
    return await _answer_poll(
        request, group_id, Renew(node_id, body.incarnation), body.after, body.wait_s, said(body)
    )


@router.post("/stacks", status_code=204)
async def send_stacks(
    request: Request, group_id: wire.Id, node_id: wire.Id, body: wire.Checked[wire.StacksRequest]
) -> Response:
    """The agent's answer to the question for stacks in the reply to one of its polls."""
    service = service_of(request)
    require_speaker(service.group(group_id), node_id, body.incarnation)
    service.questions.answered(group_id, node_id, body.number, stacks(node_id, body))
    return Response(status_code=204)


@router.post("/shares", response_model=wire.SharesReply)
async def refresh_shares(
    request: Request, group_id: wire.Id, node_id: wire.Id, body: wire.Checked[wire.SharesRequest]
) -> Response:
    """A decision on the shares of the running round, the same for all its nodes; the first who asks brings it about."""
    service = service_of(request)
    found = await decided(service, group_id, node_id, body.incarnation, body.round, body.number)
    return views.json_response(shares_reply(body.round, found))


@router.post("/report", response_model=wire.DirectiveReply)
async def report(
    request: Request, group_id: wire.Id, node_id: wire.Id, body: wire.Checked[wire.ReportRequest]
) -> Response:
    """Report on a member's workers. A report on an older round gets 409 and the current directive."""
    command = report_command(node_id, body)
    if command is None:
        if not is_newer(request.headers):
            raise problems.UnknownKind("kind", body.kind, list(ReportKind))
        ignored(f"reports of kind '{body.kind[:80]}'")
    return await _answer_member(request, group_id, node_id, body.incarnation, command)


@router.post("/daemon", response_model=wire.DirectiveReply)
async def start_daemon(
    request: Request, group_id: wire.Id, node_id: wire.Id, body: wire.Checked[wire.DaemonRequest]
) -> Response:
    """Have this node run the daemon of the master's launcher; replies with the directive of the master."""
    return await _answer_member(
        request, group_id, body.master, body.incarnation, daemon_command(node_id, body)
    )


async def _answer_member(
    request: Request, group_id: str, speaker: str, incarnation: str, command: Report | StartDaemon | None
) -> Response:
    """Execute what a member of a round says and reply with its directive, even if the round is over."""
    service = service_of(request)
    try:
        if command is not None:
            await service.execute(group_id, command)
    except StaleRound:
        current = tell(service, group_id, speaker, incarnation)
        request.state.directive = views.directive_reply(*current)
        raise
    return views.directive_response(*tell(service, group_id, speaker, incarnation))


@router.delete("", status_code=204)
async def leave(
    request: Request,
    group_id: wire.Id,
    node_id: wire.Id,
    incarnation: wire.Id,
    reason: Annotated[str, Query(max_length=256)] = "",
) -> Response:
    """The agent leaves; its workers are gone."""
    await service_of(request).execute(group_id, Leave(node_id=node_id, incarnation=incarnation, why=reason))
    return Response(status_code=204)


@router.post("/drain", response_model=wire.GroupReply)
async def drain(request: Request, group_id: wire.Id, node_id: wire.Id, nodes: NodesShown = "all") -> Response:
    """Take a node out: its agent stops its workers and exits with 4. Holds over restarts of the agent."""
    service = service_of(request)
    return await views.group_response(
        service, await service.execute(group_id, Drain(node_id)), views.PAGES[nodes]
    )


@router.post("/undrain", response_model=wire.GroupReply)
async def undrain(
    request: Request, group_id: wire.Id, node_id: wire.Id, nodes: NodesShown = "all"
) -> Response:
    """Let a drained node join again."""
    service = service_of(request)
    return await views.group_response(
        service, await service.execute(group_id, Undrain(node_id)), views.PAGES[nodes]
    )
