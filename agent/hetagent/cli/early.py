"""What ends an agent before it imports torch: no script, a refusal, a job that is over."""

import asyncio
from typing import Any

from hetagent.cli.summary import closing_block
from hetagent.launch.command import WorkerCommand, worker_command
from hetagent.node.console import say
from hetagent.options.model import Options
from hetagent.runloop.shutdown import Shutdown
from hetagent.session.refusals import STRANGERS
from hetagent.workers import failures
from hetrdzv.auth.tls import ClientTls, speaks_tls
from hetrdzv.client.client import Client
from hetrdzv.client.explain import TLS_HINT
from hetrdzv.protocol.directive import CancelledReply, DirectiveReply
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.facts.reasons import CameLate, Cancelled
from hetrdzv.protocol.pages import GroupReply
from hetrdzv.protocol.states import EXIT_FAILED, DirectiveKind

LOOK_S = 3.0
"""How long a server may take to say how the group stands (seconds)."""


class Over(Exception):
    """There is nothing to join; `outcome` says why."""

    def __init__(self, options: Options, outcome: DirectiveReply) -> None:
        super().__init__()
        self._options, self.outcome = options, outcome

    def report(self) -> int:
        """Say it at the terminal; returns the exit status."""
        options, leaving = self._options, Shutdown(self._options.grace_s, self._options.own_graces_s)
        say(closing_block(options.group, options.node_id, self.outcome, 0, ""))
        try:
            leaving.write_error_file(self.outcome)
        except OSError as error:
            say(f"hetagent: cannot write {failures.ERROR_FILE}: {error}")
        return leaving.status(self.outcome, fixed=options.exit_codes == "agent")


def command(options: Options) -> WorkerCommand | None:
    """What the workers run; None: the group's command.

    Raises:
        CommandError: it is not there.
    """
    if options.script is None:
        return None
    flags = options.torchrun
    return worker_command(
        options.script,
        options.script_args,
        module=flags.module,
        no_python=flags.no_python,
        run_path=flags.run_path,
    )


def look(options: Options, token: str | None, tls: ClientTls) -> None:
    """Ask a server whether there is a job to join; whatever else is wrong is seen later.

    Args:
        token, tls: how to speak to the servers.

    Raises:
        Over: the servers refuse this agent, or the job is over and agents begin no new one.
    """
    try:
        group = asyncio.run(_group(options, token, tls))
    except TimeoutError:
        return
    except HetError as error:
        why = str(error) if error.code in STRANGERS else _tls_there(options, error)
        if why:
            raise Over(options, _exit("refused", why, EXIT_FAILED)) from None
        return
    if group.exit_code is None:
        return
    by = group.reason.by if isinstance(group.reason, Cancelled) else None
    outcome = _exit(
        "finished",
        group.why,
        group.exit_code,
        round=group.round,
        restarts=group.restarts,
        outcome=group.state,
        reason=CameLate(group_id=group.group_id, outcome=group.state, by=by or ""),
        cancelled=None if by is None else CancelledReply(by=by, at="", ago_s=group.ended_s_ago),
        root_cause=group.root_cause,
    )
    raise Over(options, outcome)


def _tls_there(options: Options, error: HetError) -> str:
    """That a server wants https://, which hangs up on whoever does not speak it; '': it does not."""
    if TLS_HINT not in str(error):
        return ""
    plain = (url for url in options.servers if url.startswith("http://") and speaks_tls(url))
    return next((f"{url} answered, but speaks TLS: use https://" for url in plain), "")


async def _group(options: Options, token: str | None, tls: ClientTls) -> GroupReply:
    async with asyncio.timeout(LOOK_S), Client(options.servers, token=token, tls=tls) as client:
        return await client.group(options.group, nodes="none")


def _exit(code: str, why: str, exit_code: int, **more: Any) -> DirectiveReply:
    no_pace = dict.fromkeys(("poll_s", "lease_s", "stop_timeout_s", "max_disconnect_s"), 0.0)
    fields: dict[str, Any] = {"version": "", "round": 0, **no_pace, **more}
    return DirectiveReply(kind=DirectiveKind.EXIT, code=code, why=why, exit_code=exit_code, **fields)
