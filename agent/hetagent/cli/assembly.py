"""Assembles an agent from the options, runs it, and reports how the job ended."""

import os
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from string import Template
from typing import Any

from torch.distributed.elastic.multiprocessing import LogsSpecs

from hetagent.cli.summary import closing_block
from hetagent.context import AgentContext
from hetagent.errors import AgentError, UsageError
from hetagent.health import node_check
from hetagent.health.checks import HealthCheck, HealthChecks
from hetagent.health.gpus import check_gpus
from hetagent.health.node_check import NodeCheck
from hetagent.health.ready_file import ReadyFile
from hetagent.launch.command import WorkerCommand, identify_script
from hetagent.launch.kinds import make_launch
from hetagent.launch.slots import choose_devices_and_slots, hide_other_devices
from hetagent.monitor.watcher import Watcher
from hetagent.node import console, names
from hetagent.node.console import print_to_stderr
from hetagent.node.gpu import devices
from hetagent.node.gpu.discovery import versions
from hetagent.node.network import find_address
from hetagent.node.processes import proctree as processes
from hetagent.node.processes.guardian import Guardian
from hetagent.node.processes.guardian_process import SAVE_S
from hetagent.node.processes.identity import Identity, ServerAccess
from hetagent.node.standalone import ChildServer
from hetagent.options.model import Options
from hetagent.options.torchrun import format_flag
from hetagent.preemption.watching import preemption_watch
from hetagent.runloop.agent import Agent
from hetagent.runloop.deaths import ProgramDeaths
from hetagent.runloop.notices import Notices
from hetagent.runloop.parts import Parts
from hetagent.runloop.share_files import ShareFiles
from hetagent.runloop.shutdown import Shutdown
from hetagent.runloop.start_check import StartCheck
from hetagent.session.connection import ServerConnection
from hetagent.session.session import Session
from hetagent.torch_compat import flags as torchs
from hetagent.workers.logs import RoundLogsSpecs
from hetagent.workers.output import OutputCapture
from hetagent.workers.store import HetRendezvousHandler
from hetagent.workers.torch_starter import TorchStarter
from hetrdzv.auth.tls import ClientTls
from hetrdzv.protocol import codec
from hetrdzv.protocol.requests import JoinRequest, SpecFields
from hetrdzv.protocol.texts.phrasing import count as counted

PREFIX = "[${node_id}:${rank}] "
"""What lines of the workers begin with on the console unless a template was given (pytorch/pytorch#75087)."""


def run(
    options: Options,
    command: WorkerCommand | None,
    server: ChildServer | None,
    token: str | None,
    tls: ClientTls,
) -> int:
    """Join the group, follow the server until it says `exit`, and report the outcome at the terminal.

    Returns:
        the exit status.
    """
    torchs.check_supported(options.torchrun)
    servers = options.servers if server is None else (server.url,)
    token_file = options.token_file if server is None else None
    access = ServerAccess(servers=servers, token=token, token_file=token_file, tls=tls)
    known = "node_id" in options.given or server is not None
    name = (
        names.NodeIdClaim(options.node_id)
        if known
        else names.claim_node_id(options.node_id, options.group, servers)
    )
    options = replace(options, node_id=name.node_id)
    tell = partial(console.log, f"hetagent[{name.node_id}]")
    context = _context(options, command, access, tell, name.notes)
    logs_specs = _logs_specs(options)
    agent = _agent(context, server, logs_specs)
    kind = "worker" if context.devices is None else "CPU worker" if context.devices.kind == "cpu" else "GPU"
    what = f"{counted(context.slots, kind)} at {context.address.address}"
    tell(f"joining group '{options.group}' at {', '.join(servers)} with {what}")
    try:
        agent.run()
    finally:
        if isinstance(logs_specs, RoundLogsSpecs):
            logs_specs.close()
        name.release()
    block = closing_block(
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


def _context(
    options: Options,
    command: WorkerCommand | None,
    access: ServerAccess,
    tell: Callable[[str], None],
    notes: Sequence[str],
) -> AgentContext:
    """Look at this node, and clean up what an earlier agent has left on it."""
    for note in (*notes, *options.notes):
        tell(note)
    chosen, slots = choose_devices_and_slots(options)
    place = find_address(
        options.local_addr, options.interface, access.servers, options.connect_timeout_s, tell
    )
    hide_other_devices(chosen)
    launch = make_launch(options, command, slots, os.environ)
    identity = Identity(options.group, options.node_id, uuid.uuid4().hex)
    _sweep(identity, tell)
    if slots > 1 and "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun does, so that workers do not fight for cores
    return AgentContext(
        options=options,
        access=access,
        identity=identity,
        command=command,
        devices=chosen,
        slots=slots,
        address=place,
        launch=launch,
        versions=versions(),
        tell=tell,
    )


def _agent(context: AgentContext, server: ChildServer | None, logs_specs: LogsSpecs) -> Agent:
    """All parts of an agent, put together."""
    options, launch, tell = context.options, context.launch, context.tell
    handler = HetRendezvousHandler(options.group, options.node_id, context.hold_port)
    parts = Parts(preemption=preemption_watch(context))
    health = _health(context, parts)
    session = Session(
        options.group,
        options.node_id,
        _offer(context, health.within_s),
        random.Random(),
        connect_timeout_s=options.connect_timeout_s,
    )
    line = ServerConnection(session, context.access.client, tell)
    _furnish(parts, context, line, handler)
    if server is not None:
        server.on_exit(line.give_up)
    return Agent(
        identity=context.identity,
        address=context.address,
        server=line,
        # a server of its own dies with this process
        guardian=Guardian(context.identity, context.access if server is None else None),
        starter=_starter(context, handler, logs_specs),
        handler=handler,
        hold_script_port=context.hold_script_port,
        launch=launch,
        health=health,
        parts=parts,
        worker_env=context.address.socket_env(os.environ),
        stop_timeout_s=options.shutdown_timeout_s,
        shutdown=Shutdown(options.grace_s, options.own_graces_s),
        log=tell,
        secrets=context.access.secrets,
        signals=options.signals,
    )


def _starter(context: AgentContext, handler: HetRendezvousHandler, logs_specs: LogsSpecs) -> TorchStarter:
    """What makes the workers."""
    options = context.options
    prefix = options.torchrun.log_line_prefix_template or os.environ.get(
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", PREFIX
    )
    return TorchStarter(
        torchs.worker_spec(options.torchrun, context.slots, handler),
        logs_specs,
        Template(prefix).safe_substitute(node_id=options.node_id),
        OutputCapture() if options.report_output else None,
        collapse=options.collapse,
    )


def _furnish(
    parts: Parts, context: AgentContext, line: ServerConnection, handler: HetRendezvousHandler
) -> None:
    """Make the optional parts."""
    from hetagent.snapshots.node.setup import snapshot_hook
    from hetagent.standby.keeper import make_standbys

    options, launch, tell = context.options, context.launch, context.tell
    parts.notices = Notices(line, tell, options.notice_signal, one_per_node=launch.one_per_node)
    if launch.uses_process_groups:
        must_meet = options.require_rendezvous
        parts.start_check = StartCheck(line, handler.count_workers, tell, must_meet=must_meet)
    parts.deaths = ProgramDeaths() if launch.watches_child_processes else None
    parts.monitor = Watcher(
        line,
        launch,
        cpu=devices.is_cpu_job(context.devices),
        reports_output=options.report_output,
        secrets=context.access.secrets,
        log=tell,
    )
    parts.shares = ShareFiles(one_per_node=launch.one_per_node)
    if options.ready_file is not None:
        parts.ready_file = ReadyFile(options.ready_file, tell)
        line.on_member = parts.ready_file.update
    parts.snapshots = snapshot_hook(context, options.snapshots, line)
    parts.standbys = make_standbys(context)


def _offer(context: AgentContext, ready_within_s: float) -> JoinRequest:
    """What this node offers to the group.

    Raises:
        UsageError: no server would accept it.
    """
    options, launch, runs = context.options, context.launch, context.options.torchrun
    script, digest = identify_script(options.script, module=runs.module, no_python=runs.no_python)
    offer = JoinRequest(
        incarnation=context.identity.incarnation,
        port=1,  # until one is held
        slots=context.slots,
        address=context.address.address,
        role=runs.role,
        labels=options.labels,
        weight=options.weight,
        device={
            **context.versions,
            **(context.devices.facts if context.devices is not None else {}),
            **({"script": digest} if digest else {}),
        },
        wants_command=context.command is None,
        wants_members=launch.wants_members,
        wants_daemon=launch.wants_daemon,
        takes_notice=True,
        script=script,
        ready_within_s=ready_within_s,
        spec=SpecFields(**options.spec),
    )
    try:
        codec.validate(JoinRequest, offer)
    except codec.Malformed as error:
        wrong = error.mistakes[0]
        name = next(part for part in wrong.field.split(".") if part != "spec")
        flag = "label" if name == "labels" else name.replace("_", "-")
        given = "" if wrong.given is None else f" {wrong.given!r}"
        raise UsageError(f"no server accepts --{flag}{given}: {wrong.text}") from None
    return offer


def _health(context: AgentContext, parts: Parts) -> HealthChecks:
    """What is asked of this node before each round."""
    options, identity = context.options, context.identity
    once: list[HealthCheck] = []
    repeated, within_s = None, 0.0
    if gpus := [gpu.uuid for gpu in devices.visible_gpus(os.environ)]:
        once.append(partial(check_gpus, gpus))
    if parts.preemption is not None:
        once.append(parts.preemption.check)
    if options.node_check:
        repeated = NodeCheck(
            options.node_check,
            identity.incarnation,
            environ={processes.NODE_ID: identity.node_id},
            secrets=context.access.secrets,
        ).run
        within_s += node_check.WITHIN_S
    return HealthChecks(once, repeated, within_s=within_s)


def _sweep(identity: Identity, tell: Callable[[str], None]) -> None:
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


def _logs_specs(options: Options) -> LogsSpecs:
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
