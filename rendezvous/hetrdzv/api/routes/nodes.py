"""Routes about one node of a group: join, poll for the directive, report, leave, drain."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from hetrdzv.api import views, workers
from hetrdzv.api.bound import Handlers
from hetrdzv.api.commands import daemon_command, join_command, report_command
from hetrdzv.api.dispatch import polls_of, service_of
from hetrdzv.api.problems import InvalidField, StaleReport
from hetrdzv.auth.policy import permit_of
from hetrdzv.core.commands import Drain, Join, Leave, Renew, Report, StartDaemon, Undrain
from hetrdzv.core.memo import kept
from hetrdzv.core.model import Group
from hetrdzv.core.rounds.transitions import require_speaker
from hetrdzv.protocol.bounds import UNSET
from hetrdzv.protocol.errors import SpecConflict, StaleRound
from hetrdzv.protocol.facts.reasons import NodeReason
from hetrdzv.protocol.http import routes
from hetrdzv.protocol.requests.daemon import DaemonRequest
from hetrdzv.protocol.requests.joining import JoinRequest
from hetrdzv.protocol.requests.reports import ReportRequest
from hetrdzv.protocol.rooms.progress import NodeProgress, PollRequest
from hetrdzv.protocol.rooms.stacks import LogsRequest, StacksRequest
from hetrdzv.protocol.states import ReportKind
from hetrdzv.service.liveness.caller import Caller
from hetrdzv.service.polls.directives import Told, tell

handlers = Handlers()

REPLIES_KEPT = 4
"""How many replies to waiting nodes are kept per group; all its nodes get the same."""


@handlers(routes.JOIN)
async def join(request: Request, group_id: str, node_id: str, body: JoinRequest, wait: float) -> bytes | None:
    """Join, or ready for the next round. Replies with the directive; with `wait` it may wait for one."""
    if body.spec.command is not UNSET:
        permit_of(request).check_command(group_id)
    try:
        return await _answer_poll(request, group_id, join_command(node_id, body), None, wait)
    except SpecConflict as conflict:
        await service_of(request).note_refusal(group_id, node_id, conflict)
        raise


@handlers(routes.DIRECTIVE)
async def get_directive(
    request: Request, group_id: str, node_id: str, incarnation: str, after: str | None, wait: float
) -> bytes | None:
    """Long poll: replies once the version differs from `after`, or after `wait` seconds. Renews the lease."""
    command = Renew(node_id, incarnation, after)
    return await _answer_poll(request, group_id, command, after, wait)


@handlers(routes.POLL)
async def poll(request: Request, group_id: str, node_id: str, body: PollRequest) -> bytes | None:
    """The same poll, which also says how far the node's workers have come. May be answered with a question."""
    command = Renew(node_id, body.incarnation, body.after)
    return await _answer_poll(
        request, group_id, command, body.after, body.wait_s, asks=True, progress=body.progress
    )


async def _answer_poll(
    request: Request,
    group_id: str,
    command: Join | Renew,
    after: str | None,
    wait_s: float,
    *,
    asks: bool = False,
    progress: NodeProgress | None = None,
) -> bytes | None:
    polls, node_id, caller = polls_of(request), command.node_id, Caller()
    watching = asyncio.ensure_future(_hang_up(request, caller)) if wait_s > 0 else None
    try:
        told = await polls.answer(caller, group_id, command, after, wait_s, asks=asks, progress=progress)
    finally:
        if watching is not None:
            watching.cancel()
    if told is None:  # nobody reads it
        return None
    asked = asks and polls.service.questions.next(group_id, node_id) is not None
    return views.asking_json(polls.service, node_id, told) if asked else _directive(told)


async def _hang_up(request: Request, caller: Caller) -> None:
    """Tell a caller once its client is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    caller.hang_up()


def _directive(told: Told) -> bytes:
    """A directive as JSON. All waiting nodes of a group get the same."""
    group, directive, pace = told
    if (
        directive.start is not None
        or directive.root_cause is not None
        or directive.replaced
        or directive.cancellation
    ):
        return views.directive_json(group, directive, pace)
    known = _replies(group)
    key = (directive.version, int(directive.clock), pace)
    reason, body = known.get(key, (None, b""))
    if reason != directive.reason:
        if len(known) >= REPLIES_KEPT:
            known.clear()
        body = views.directive_json(group, directive, pace)
        known[key] = directive.reason, body
    return body


@kept
def _replies(group: Group) -> dict[tuple[object, ...], tuple[NodeReason, bytes]]:
    return {}


@handlers(routes.STACKS)
async def send_stacks(request: Request, group_id: str, node_id: str, body: StacksRequest) -> None:
    """The agent's answer to the question for stacks in the reply to one of its polls."""
    service = service_of(request)
    require_speaker(service.group(group_id), node_id, body.incarnation)
    service.questions.answered(group_id, node_id, body.number, body.stacks)


@handlers(routes.LOGS)
async def send_logs(request: Request, group_id: str, node_id: str, body: LogsRequest) -> None:
    """The workers of a node are gone: the end of what those of a round have written, for later."""
    service = service_of(request)
    group = service.group(group_id)
    require_speaker(group, node_id, body.incarnation)
    workers.wrote(service, group, node_id, body.round, body.logs)


@handlers(routes.REPORT)
async def report(request: Request, group_id: str, node_id: str, body: ReportRequest) -> bytes | None:
    """Report on a member's workers. A report on an older round gets 409 and the current directive."""
    command = report_command(node_id, body)
    if command is None:
        *most, last = map(repr, map(str, ReportKind))
        what = f"Input should be {', '.join(most)} or {last} (given: {body.kind!r:.80})"
        raise InvalidField("kind", what)
    return await _answer_member(request, group_id, node_id, body.incarnation, command)


@handlers(routes.DAEMON)
async def start_daemon(request: Request, group_id: str, node_id: str, body: DaemonRequest) -> bytes | None:
    """Have this node run the daemon of the master's launcher; replies with the directive of the master."""
    return await _answer_member(
        request, group_id, body.master, body.incarnation, daemon_command(node_id, body)
    )


async def _answer_member(
    request: Request, group_id: str, speaker: str, incarnation: str, command: Report | StartDaemon
) -> bytes | None:
    """Execute what a member of a round says and reply with its directive, even if the round is over."""
    service = service_of(request)
    try:
        await polls_of(request).execute(group_id, command)
    except StaleRound as error:
        told = views.directive_reply(*tell(service, group_id, speaker, incarnation))
        raise StaleReport(str(error), told) from None
    return _directive(tell(service, group_id, speaker, incarnation))


@handlers(routes.LEAVE)
async def leave(
    request: Request, group_id: str, node_id: str, incarnation: str, reason: str, died: int
) -> None:
    """The agent leaves; its workers are gone."""
    going = Leave(node_id=node_id, incarnation=incarnation, why=reason, died=bool(died))
    await service_of(request).execute(group_id, going)


@handlers(routes.DRAIN)
async def drain(request: Request, group_id: str, node_id: str, nodes: str) -> Response:
    """Take a node out: its agent stops its workers and exits with 4. Holds over restarts of the agent."""
    return await views.changed(service_of(request), group_id, Drain(node_id), nodes)


@handlers(routes.UNDRAIN)
async def undrain(request: Request, group_id: str, node_id: str, nodes: str) -> Response:
    """Let a drained node join again."""
    return await views.changed(service_of(request), group_id, Undrain(node_id), nodes)
