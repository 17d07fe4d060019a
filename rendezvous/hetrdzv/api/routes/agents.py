"""What agents ask: join, poll for the directive, report, answer questions, leave."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

from annotated_types import Ge, Le
from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from hetrdzv.api.dependencies import (
    AGENTS,
    GROUP_ERROR_RESPONSES,
    CurrentService,
    JsonRoute,
    Requires,
    WaitQuery,
)
from hetrdzv.auth.tokens import Role
from hetrdzv.core.commands import DeclareSnapshots, Join, Leave, RenewLease, Report, StartDaemon
from hetrdzv.core.rounds.transitions import require_current_agent
from hetrdzv.protocol import codec
from hetrdzv.protocol.bounds import Id, ShortText
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.errors import Refused, SpecConflict, StaleRound
from hetrdzv.protocol.progress import PollRequest
from hetrdzv.protocol.requests import DaemonRequest, JoinRequest, ReportRequest, explain_daemon_refusal
from hetrdzv.protocol.snapshots import SnapshotsReply, SnapshotsRequest
from hetrdzv.protocol.worker_output import WorkerOutputRequest
from hetrdzv.service.polls.polls import Polls, current_directive
from hetrdzv.service.polls.waiting_polls import Caller

router = APIRouter(
    prefix="/v1/groups/{group_id}/nodes/{node_id}",
    route_class=JsonRoute,
    tags=["agents"],
    responses=GROUP_ERROR_RESPONSES,
    dependencies=[Depends(Requires(Role.AGENT))],
)

# -- joins and polls -----------------------------------------------------------------------------------------


@router.put("", response_model=Directive)
async def join(
    request: Request,
    group_id: Id,
    node_id: Id,
    body: Annotated[JoinRequest, AGENTS],
    wait: WaitQuery = 0.0,
) -> Response:
    """Join, or ready for the next round. Replies with the directive; with `wait` it may wait for one."""
    if "command" in body.spec:
        asked = "a command in the spec of a join, which other nodes would run,"
        request.state.grant.check(Role.ADMIN, group_id, asked)
    try:
        poll = PollRequest(incarnation=body.incarnation, wait_s=wait)
        return await _answer_poll(
            request, group_id, Join(node_id=node_id, **codec.fields_by_name(body)), poll
        )
    except SpecConflict as conflict:
        await request.state.polls.service.record_refusal(group_id, node_id, conflict.conflict)
        raise


@router.get("/directive", response_model=Directive)
async def get_directive(
    request: Request,
    group_id: Id,
    node_id: Id,
    incarnation: Id,
    after: ShortText = "",
    wait: WaitQuery = 0.0,
) -> Response:
    """Long poll: replies once the version differs from `after`, or after `wait` seconds. Renews the lease."""
    poll = PollRequest(incarnation=incarnation, after=after or None, wait_s=wait)
    return await _answer_poll(request, group_id, RenewLease(node_id, incarnation, poll.after), poll)


@router.post("/directive", response_model=Directive)
async def poll(request: Request, group_id: Id, node_id: Id, body: Annotated[PollRequest, AGENTS]) -> Response:
    """The same poll, which also says how far the node's workers have come. May be answered with a question."""
    command = RenewLease(node_id, body.incarnation, body.after)
    return await _answer_poll(request, group_id, command, body, asks=True)


async def _answer_poll(
    request: Request, group_id: str, command: Join | RenewLease, poll: PollRequest, *, asks: bool = False
) -> Response:
    # joins and polls come by the thousand: two dependencies more took a tenth of their time
    polls: Polls = request.state.polls
    with _watch_caller(request) as caller:
        answer = await polls.answer_poll(caller, group_id, command, poll, asks=asks)
    if answer is None:  # nobody reads it
        return Response(status_code=204)
    query = polls.service.queries.next_query(group_id, command.node_id) if asks else None
    if query is not None:
        query.is_sent = True
        also: dict[str, Any] = {str(query.asked.about): query.asked}
        answer = replace(answer, **also)
    return _json_response(codec.to_json(answer))


@contextmanager
def _watch_caller(request: Request) -> Iterator[Caller]:
    """The client of a request, which hangs up once it is gone."""
    caller = Caller()

    async def watch_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        caller.hang_up()

    watching = asyncio.ensure_future(watch_for_disconnect())
    try:
        yield caller
    finally:
        watching.cancel()


def _json_response(body: bytes) -> Response:
    return Response(body, media_type="application/json")


# -- what agents tell ----------------------------------------------------------------------------------------


@router.post("/report", response_model=Directive)
async def report(
    request: Request, group_id: Id, node_id: Id, body: Annotated[ReportRequest, AGENTS]
) -> Response:
    """Report on a member's workers. A report on an older round gets 409 and the current directive."""
    command = Report(node_id=node_id, **codec.fields_by_name(body))
    return await _execute_for_member(request.state.polls, group_id, node_id, body.incarnation, command)


@router.post("/daemon", response_model=Directive)
async def start_daemon(
    request: Request, group_id: Id, node_id: Id, body: Annotated[DaemonRequest, AGENTS]
) -> Response:
    """Have this node run the daemon of the master's launcher; replies with the directive of the master."""
    if (why := explain_daemon_refusal(body.words)) is not None:
        raise Refused(f"node '{node_id}' cannot be asked to run this: {why}")
    command = StartDaemon(node_id=node_id, **codec.fields_by_name(body))
    return await _execute_for_member(request.state.polls, group_id, body.master, body.incarnation, command)


async def _execute_for_member(
    polls: Polls, group_id: str, speaker: str, incarnation: str, command: Report | StartDaemon
) -> Response:
    """Execute what a member of a round says and reply with its directive, even if the round is over."""
    try:
        await polls.execute(group_id, command)  # it is true though its client may have hung up
    except StaleRound as error:
        error.directive = current_directive(polls.service, group_id, speaker, incarnation)
        raise
    return _json_response(codec.to_json(current_directive(polls.service, group_id, speaker, incarnation)))


@router.post("/stacks", status_code=204, response_class=Response)
async def send_stacks(
    service: CurrentService, group_id: Id, node_id: Id, body: Annotated[WorkerOutputRequest, AGENTS]
) -> None:
    """The agent's answer to the question for stacks in the reply to one of its polls."""
    require_current_agent(service.group(group_id), node_id, body.incarnation)
    service.queries.on_answer(group_id, node_id, body.number, body.stacks)


@router.post("/logs", status_code=204, response_class=Response)
async def send_logs(
    service: CurrentService, group_id: Id, node_id: Id, body: Annotated[WorkerOutputRequest, AGENTS]
) -> None:
    """The workers of a node are gone: the end of what those of a round have written, for later."""
    group = service.group(group_id)
    require_current_agent(group, node_id, body.incarnation)
    service.post_mortems.add_logs(group, node_id, body.number, body.stacks)


@router.post("/snapshots", response_model=SnapshotsReply)
async def declare_snapshots(
    service: CurrentService, group_id: Id, node_id: Id, body: Annotated[SnapshotsRequest, AGENTS]
) -> Response:
    """What a member holds has changed while its round runs; answers what all nodes hold together."""
    command = DeclareSnapshots(node_id=node_id, **codec.fields_by_name(body))
    return _json_response(codec.to_json(await service.record_snapshot_inventory(group_id, command)))


@router.delete("", status_code=204, response_class=Response)
async def leave(
    service: CurrentService,
    group_id: Id,
    node_id: Id,
    incarnation: Id,
    reason: ShortText = "",
    died: Annotated[int, Ge(0), Le(1), Query(description="1: the agent died; its guardian says so.")] = 0,
) -> None:
    """The agent leaves; its workers are gone."""
    going = Leave(node_id=node_id, incarnation=incarnation, why=reason, died=bool(died))
    await service.execute(group_id, going)
