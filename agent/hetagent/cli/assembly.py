"""Assembles an agent from the options, runs it, and reports how the job ended."""

import os
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from string import Template
from typing import Any

from torch.distributed.elastic.multiprocessing import LogsSpecs

from hetagent.cli.summary import format_summary
from hetagent.context import AgentContext
from hetagent.errors import AgentError, UsageError
from hetagent.health import node_check
from hetagent.health.gpus import check_gpus
from hetagent.health.health_checks import HealthCheck, HealthChecks
from hetagent.health.node_check import NodeCheck
from hetagent.health.ready_file import ReadyFile
from hetagent.launch.command import WorkerCommand, identify_script
from hetagent.launch.kinds import make_launch
from hetagent.launch.slots import choose_worker_devices, hide_other_devices
from hetagent.monitor.watcher import Watcher
from hetagent.node import console, names
from hetagent.node.console import print_to_stderr
from hetagent.node.gpu import devices
from hetagent.node.gpu.driver import find_versions
from hetagent.node.network import find_address
from hetagent.node.processes import proctree as processes
from hetagent.node.processes.guardian_client import Guardian
from hetagent.node.processes.guardian_process import SAVE_S
from hetagent.node.processes.identity import AgentIdentity, ServerAccess
from hetagent.node.standalone import ChildServer
from hetagent.options.model import Options
from hetagent.options.torchrun import format_flag
from hetagent.preemption.watching import make_preemption_watch
from hetagent.runloop.agent import Agent
from hetagent.runloop.deaths import ProgramDeaths
from hetagent.runloop.notices import StopNotices
from hetagent.runloop.parts import AgentParts
from hetagent.runloop.share_files import ShareFiles
from hetagent.runloop.start_check import StartCheck
from hetagent.session.connection import ServerConnection
from hetagent.session.session import Session
from hetagent.snapshots.node.setup import make_snapshot_hook
from hetagent.standby.keeper import make_standbys
from hetagent.torch_compat import flags as torchs
from hetagent.workers.logs import RoundLogsSpecs
from hetagent.workers.output import OutputCapture
from hetagent.workers.store import HetRendezvousHandler
from hetagent.workers.torch_starter import TorchStarter
from hetrdzv.protocol.requests import JoinRequest, SpecFields

PREFIX = "[${node_id}:${rank}] "
"""What lines of the workers begin with on the console unless a template was given (pytorch/pytorch#75087)."""


def run_agent(
    options: Options, command: WorkerCommand | None, access: ServerAccess, server: ChildServer | None
) -> int:
    """Join the group, follow the server until it says `exit`, and report the outcome at the terminal.

    Args:
        server: of `--standalone`.

    Returns:
        the exit status.
    """
    torchs.check_supported(options.torchrun)
    if server is not None:
        access = replace(access, servers=(server.url,))
    given = "node_id" in options.given
    node_id, release_node_id = names.claim_node_id(
        options.node_id, options.group, access.servers, given=given
    )
    options = replace(options, node_id=node_id)
    tell = partial(console.log, f"hetagent[{node_id}]")
    context = _make_context(options, command, access, tell)
    logs_specs = _make_logs_specs(options)
    agent = _make_agent(context, server, logs_specs)
    what = f"{context.devices.description} at {context.address.address}"
    tell(f"joining group '{options.group}' at {', '.join(access.servers)} with {what}")
    try:
        agent.run()
    finally:
        if isinstance(logs_specs, RoundLogsSpecs):
            logs_specs.close()
        release_node_id()
    block = format_summary(
        options.group,
        options.node_id,
        agent.outcome,
        agent.round_number,
        agent.shutdown.ended_by,
        agent.last_words,
        logs_specs.folder if isinstance(logs_specs, RoundLogsSpecs) else "",
    )
    print_to_stderr(block)
    return agent.shutdown.exit_status(agent.outcome, fixed=options.exit_codes == "agent")


def _make_context(
    options: Options, command: WorkerCommand | None, access: ServerAccess, tell: Callable[[str], None]
) -> AgentContext:
    """Look at this node, and clean up what an earlier agent has left on it."""
    for note in options.notes:
        tell(note)
    chosen = choose_worker_devices(options)
    address = find_address(
        options.local_addr, options.interface, access.servers, options.connect_timeout_s, tell
    )
    hide_other_devices(chosen)
    launch = make_launch(options, command, chosen.slots, os.environ)
    identity = AgentIdentity(options.group, options.node_id, uuid.uuid4().hex)
    _kill_orphans(identity, tell)
    if chosen.slots > 1 and "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun does, so that workers do not fight for cores
    return AgentContext(
        options=options,
        access=access,
        identity=identity,
        command=command,
        devices=chosen,
        address=address,
        launch=launch,
        versions=find_versions(),
        tell=tell,
    )


def _make_agent(context: AgentContext, child: ChildServer | None, logs_specs: LogsSpecs) -> Agent:
    """All parts of an agent, put together."""
    options, tell = context.options, context.tell
    handler = HetRendezvousHandler(options.group, options.node_id, context.hold_port)
    offer, timeout_s = _make_offer(context), options.connect_timeout_s
    session = Session(options.group, options.node_id, offer, random.Random(), connect_timeout_s=timeout_s)
    server = ServerConnection(session, context.access.client, tell)
    parts = _make_parts(context, server, handler)
    if parts.ready_file is not None:
        server.on_member = parts.ready_file.set_joined
    pipes = parts.snapshots.pipe_folder() if parts.snapshots is not None else None
    if child is not None:
        child.on_exit(server.give_up)
    return Agent(
        context=context,
        server=server,
        # a server of its own dies with this process
        guardian=Guardian(context.identity, context.access if child is None else None, pipes),
        starter=_make_starter(context, handler, logs_specs),
        handler=handler,
        health=HealthChecks(_make_health_checks(context)),
        parts=parts,
    )


def _make_starter(
    context: AgentContext, handler: HetRendezvousHandler, logs_specs: LogsSpecs
) -> TorchStarter:
    """What makes the workers."""
    options = context.options
    prefix = options.torchrun.log_line_prefix_template or os.environ.get(
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", PREFIX
    )
    return TorchStarter(
        torchs.make_worker_spec(options.torchrun, context.devices.slots, handler),
        logs_specs,
        Template(prefix).safe_substitute(node_id=options.node_id),
        OutputCapture() if options.report_output else None,
        collapse=options.collapse,
    )


def _make_parts(context: AgentContext, server: ServerConnection, handler: HetRendezvousHandler) -> AgentParts:
    """The optional parts."""
    options, launch, tell = context.options, context.launch, context.tell
    one_per_node, must_meet = launch.one_per_node, options.require_rendezvous
    return AgentParts(
        notices=StopNotices(server, tell, options.notice_signal, one_per_node=one_per_node),
        start_check=StartCheck(server, handler.count_workers, tell, must_meet=must_meet)
        if launch.uses_process_groups
        else None,
        deaths=ProgramDeaths() if launch.watches_child_processes else None,
        monitor=Watcher(
            server,
            launch,
            cpu=devices.is_cpu_job(context.devices),
            reports_output=options.report_output,
            secrets=context.access.secrets,
            log=tell,
        ),
        shares=ShareFiles(one_per_node=one_per_node),
        snapshots=make_snapshot_hook(context, options.snapshots, server),
        standbys=make_standbys(context),
        preemption=make_preemption_watch(context),
        ready_file=ReadyFile(options.ready_file, tell) if options.ready_file is not None else None,
    )


def _make_offer(context: AgentContext) -> JoinRequest:
    """What this node offers to the group."""
    options, launch, runs = context.options, context.launch, context.options.torchrun
    script, digest = identify_script(options.script, module=runs.module, no_python=runs.no_python)
    return JoinRequest(
        incarnation=context.identity.incarnation,
        port=1,  # until one is held
        slots=context.devices.slots,
        address=context.address.address,
        role=runs.role,
        labels=options.labels,
        weight=options.weight,
        device={**context.versions, **context.devices.facts, **({"script": digest} if digest else {})},
        wants_command=context.command is None,
        wants_members=launch.wants_members,
        wants_daemon=launch.wants_daemon,
        takes_notice=True,
        script=script,
        ready_within_s=node_check.RESULT_TIMEOUT_S if options.node_check else 0.0,
        spec=SpecFields(**options.spec),
    )


def _make_health_checks(context: AgentContext) -> Iterator[HealthCheck]:
    """What is asked of this node before each round."""
    options, identity = context.options, context.identity
    if gpus := [gpu.uuid for gpu in devices.visible_gpus(os.environ)]:
        yield partial(check_gpus, gpus)
    if options.node_check:
        environ = {processes.NODE_ID: identity.node_id}
        yield NodeCheck(
            options.node_check, identity.incarnation, environ=environ, secrets=context.access.secrets
        ).run


def _kill_orphans(identity: AgentIdentity, tell: Callable[[str], None]) -> None:
    """Kill the workers of an earlier agent of this node that was killed, perhaps together with its guardian.

    If that lives, it does so itself once they have saved their state.
    """
    until = time.monotonic() + SAVE_S
    while (orphans := processes.find_orphans(identity.node_id, identity.group)) and time.monotonic() < until:
        time.sleep(0.1)
    if orphans:
        tell(f"killing workers that an earlier agent left behind: pids {', '.join(map(str, orphans))}")
        if stuck := processes.kill_tree(lambda: processes.find_orphans(identity.node_id, identity.group)):
            raise AgentError(
                f"node '{identity.node_id}' cannot take part: processes of an earlier agent cannot be killed: "
                f"{processes.describe_stuck(stuck)}; check the node before you use it again"
            )


def _make_logs_specs(options: Options) -> LogsSpecs:
    flags = options.torchrun
    common: Mapping[str, Any] = {
        "log_dir": flags.log_dir,
        "redirects": torchs.to_torch_std(flags.redirects),
        "tee": torchs.to_torch_std(flags.tee),
        "local_ranks_filter": flags.local_ranks_filter,
    }
    if flags.log_dir is not None and os.path.isfile(flags.log_dir):
        raise UsageError(f"{format_flag('--log-dir', flags.log_dir)} is a file: name a folder")
    try:
        if flags.logs_specs is not None:
            specs: LogsSpecs = torchs.logs_specs_class(flags.logs_specs)(**common)
            return specs
        return RoundLogsSpecs(**common)
    except OSError as error:
        where = (
            format_flag("--log-dir", flags.log_dir) if flags.log_dir else "no --log-dir, so a temporary one"
        )
        raise UsageError(f"{where}: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"--logs-specs: {error}") from None
