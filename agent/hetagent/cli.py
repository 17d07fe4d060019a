"""hetagent: from the command line to a running agent, and from its outcome to an exit status."""

import contextlib
import os
import random
import signal
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import LogsSpecs, Std
from torch.distributed.run import _get_logs_specs_class, determine_local_world_size
from torch.numa.binding import AffinityMode, NumaOptions

from hetagent import devices, network, processes
from hetagent.console import flush, say
from hetagent.elastic import AgentError, HetElasticAgent, Identity
from hetagent.flags import Options, UsageError, parse
from hetagent.guardian import Guardian, GuardianError
from hetagent.handler import HetRendezvousHandler
from hetagent.launch.base import Launch
from hetagent.launch.command import CommandError, WorkerCommand, worker_command
from hetagent.launch.kinds import launch_of
from hetagent.launch.kinds import notes as launch_notes
from hetagent.line import Line
from hetagent.logs import RoundLogsSpecs
from hetagent.place import Place, patiently
from hetagent.session import Offer, Session
from hetagent.standalone import OwnServer, own_server
from hetagent.summary import closing_block
from hetrdzv.access import AccessError, client_token, token_again
from hetrdzv.client import Client
from hetrdzv.tls import ClientTls, TlsError
from hetrdzv.wire import MAX_SLOTS, JoinRequest, SpecFields

EXIT_USAGE = 2
EXIT_FAILED = 1
EXIT_SIGNAL = 128


def main() -> None:
    """Run this node's part of a job; exits as DESIGN.md, Agent, says."""
    # Where a launcher ignores it, the kernel reaps the workers and their exit statuses are lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        options = parse(sys.argv[1:], os.environ)
        token = _token(options)
        tls = _tls(options)
        with own_server() if options.standalone else contextlib.nullcontext() as server:
            status = run(options, server, token, tls)
    except (
        UsageError,
        CommandError,
        devices.DeviceError,
        network.NetworkError,
        AccessError,
        TlsError,
    ) as error:
        say(f"hetagent: {error}")
        status = EXIT_USAGE
    except (AgentError, GuardianError) as error:
        say(f"hetagent: {error}")
        status = EXIT_FAILED
    except KeyboardInterrupt:  # before the agent handles signals, or after
        status = EXIT_SIGNAL + signal.SIGINT
    flush()
    sys.exit(status)


def _token(options: Options) -> str | None:
    """The token for the server, which nobody else needs: neither the workers nor a server of our own."""
    token = client_token(options.token_file)
    os.environ.pop("HET_TOKEN", None)
    return None if options.standalone else token


def _tls(options: Options) -> ClientTls:
    """What is believed of servers, and shown to them; a server of our own speaks plain HTTP on loopback."""
    if options.standalone:
        return ClientTls()
    files = {"ca_cert": options.ca_cert, "client_cert": options.client_cert, "client_key": options.client_key}
    return ClientTls.of(files, os.environ)


def run(options: Options, server: OwnServer | None, token: str | None, tls: ClientTls) -> int:
    """Join, do what the server says until it says `exit`, and tell how it went.

    Args:
        server: our own, with `--standalone`.
        token: for the servers.
        tls: towards the servers.

    Returns:
        the exit status.
    """
    servers = options.servers if server is None else (server.url,)

    def tell(text: str) -> None:
        say("\n".join(f"hetagent[{options.node_id}]: {line}" for line in text.splitlines()))

    command = _command(options)
    for note in (*options.notes, *launch_notes(options, command)):
        tell(note)
    chosen, slots = _slots(options)
    fixed = options.local_addr is not None
    place = patiently(
        lambda: Place(
            lambda: network.offered_address(options.local_addr, options.interface, servers), fixed=fixed
        ),
        options.connect_timeout_s,
        tell,
    )
    os.environ.update(devices.narrow(chosen, os.environ) if chosen is not None else {})
    launch = launch_of(options, command, slots, os.environ)
    identity = Identity(options.group, options.node_id, uuid.uuid4().hex)
    _sweep(identity, tell)

    offer = _offer(options, slots, place.address, chosen, launch, wants_command=command is None)
    session = Session(
        options.group,
        options.node_id,
        identity.incarnation,
        offer,
        random.Random(),
        connect_timeout_s=options.connect_timeout_s,
    )
    handler = HetRendezvousHandler(
        options.group,
        options.node_id,
        lambda: network.hold_port(place.address, options.port_range),
    )
    logs_specs = _logs_specs(options, command)
    spec = _worker_spec(options, slots, handler, command)

    worker_env = network.socket_env(place.interface, os.environ)

    def moved() -> bool:
        lost = place.address
        if not place.moved():
            return False
        tell(f"this node has lost its address {lost}; offering {place.address} from now on")
        session.offer = replace(session.offer, address=place.address)
        worker_env.clear()
        worker_env.update(network.socket_env(place.interface, os.environ))
        return True

    token_file = options.token_file.absolute() if options.token_file is not None and server is None else None

    def client() -> Client:
        return Client(servers, token=token, renew_token=lambda: token_again(token_file), tls=tls)

    line = Line(session, client, tell)
    if server is not None:
        server.watch(line.give_up)
    agent = HetElasticAgent(
        spec,
        logs_specs,
        identity=identity,
        line=line,
        guardian=Guardian(
            incarnation=identity.incarnation,
            servers=servers,
            token=token,
            token_file=token_file,
            tls=tls,
            group=options.group,
            node_id=options.node_id,
        ),
        hold_script_port=lambda: network.hold_port(place.address, options.port_range),
        worker_env=worker_env,
        moved=moved,
        launch=launch,
        stop_timeout_s=options.shutdown_timeout_s,
        tell=tell,
        signals=options.signals,
        log_line_prefix_template=os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
    )
    kind = "worker" if chosen is None else "CPU worker" if chosen.kind == "cpu" else "GPU"
    what = f"{slots} {kind}{'s' if slots != 1 else ''} at {place.address}"
    tell(f"group '{options.group}' at {', '.join(servers)}: offering {what}")
    try:
        agent.run()
    finally:
        if isinstance(logs_specs, RoundLogsSpecs):
            logs_specs.close()
    ended_by = agent.signum.name if agent.signum is not None else ""
    say(closing_block(options.group, options.node_id, agent.outcome, agent.round_number, ended_by))
    status = _status(agent)
    if agent.hangs:  # the interpreter would wait for a look-up that may take a minute
        flush()
        os._exit(status)
    return status


def _status(agent: HetElasticAgent) -> int:
    if agent.signum is not None:
        return EXIT_SIGNAL + agent.signum
    if agent.outcome is None or agent.outcome.exit_code is None:
        return EXIT_FAILED
    return agent.outcome.exit_code


def _offer(
    options: Options,
    slots: int,
    address: str,
    chosen: devices.Devices | None,
    launch: Launch,
    *,
    wants_command: bool,
) -> Offer:
    """What this node brings.

    Raises:
        UsageError: no server would take it.
    """
    common: dict[str, Any] = {
        "slots": slots,
        "address": address,
        "role": options.torchrun.role,
        "labels": options.labels,
        "device": chosen.facts if chosen is not None else {},
        "wants_command": wants_command,
        "wants_members": launch.wants_members,
        "wants_daemon": launch.wants_daemon,
    }
    try:
        spec = SpecFields(**options.spec)  # type: ignore[arg-type]
        JoinRequest(incarnation="any", port=1, spec=spec, **common)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        flag = str(first["loc"][0]).replace("_", "-").removesuffix("s" if first["loc"][0] == "labels" else "")
        raise UsageError(
            f"--{flag} {first['input']!r} is nothing that a server takes: {first['msg']}"
        ) from None
    return Offer(spec=spec, **common)


def _command(options: Options) -> WorkerCommand | None:
    """What the workers run; None: the group's command."""
    if options.script is None:
        return None
    flags = options.torchrun
    return worker_command(
        options.script,
        options.script_args,
        module=bool(flags.module),
        no_python=bool(flags.no_python),
        run_path=bool(flags.run_path),
    )


def _slots(options: Options) -> tuple[devices.Devices | None, int]:
    """The chosen devices and how many workers they make; none where --nproc-per-node gives a number."""
    nproc = options.nproc_per_node
    if nproc is None:
        chosen = devices.choose(options.gpus, options.device, os.environ)
        return chosen, chosen.slots
    if nproc in ("gpu", "auto") and options.device != "cpu":
        try:
            chosen = devices.choose("auto", "cuda", os.environ)
            return chosen, chosen.slots
        except devices.DeviceError as error:
            if nproc == "gpu":
                raise UsageError(f"--nproc-per-node gpu: {error}") from None
    try:
        slots = determine_local_world_size(nproc)
    except ValueError as error:
        raise UsageError(f"--nproc-per-node {nproc}: {error}; pass a number, gpu, cpu or auto") from None
    if not 1 <= slots <= MAX_SLOTS:
        raise UsageError(f"--nproc-per-node {nproc}: a node has 1 to {MAX_SLOTS} workers")
    if options.device == "auto":
        return None, slots
    return devices.choose(str(slots), options.device, os.environ), slots


def _sweep(identity: Identity, tell: Callable[[str], None]) -> None:
    """End what an earlier agent of this node left behind, should it and its guardian have been killed."""
    orphans = processes.orphans(identity.node_id, identity.group)
    if orphans:
        tell(f"an earlier agent left workers behind (pids {', '.join(map(str, orphans))}); they are killed")
        processes.kill_orphans(identity.node_id, identity.group)


def _worker_spec(
    options: Options, slots: int, handler: HetRendezvousHandler, command: WorkerCommand | None
) -> WorkerSpec:
    flags = options.torchrun
    if slots > 1 and "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun does, so that workers do not fight for cores
    numa = None if flags.numa_binding is None else NumaOptions(affinity_mode=AffinityMode(flags.numa_binding))
    return WorkerSpec(
        role=flags.role,
        local_world_size=slots,
        entrypoint=command.entrypoint if command is not None else sys.executable,
        args=command.args if command is not None else (),
        rdzv_handler=handler,
        event_log_handler=flags.event_log_handler,
        numa_options=numa,
        duplicate_stdout_filters=flags.duplicate_stdout_filters,
        duplicate_stderr_filters=flags.duplicate_stderr_filters,
        virtual_local_rank=bool(flags.virtual_local_rank),
    )


def _logs_specs(options: Options, command: WorkerCommand | None) -> LogsSpecs:
    flags = options.torchrun
    ranks = set(options.local_ranks_filter) if options.local_ranks_filter is not None else None
    common: Mapping[str, Any] = {
        "log_dir": flags.log_dir,
        "redirects": _streams("--redirects", flags.redirects),
        "tee": _streams("--tee", flags.tee),
        "local_ranks_filter": ranks,
    }
    if flags.log_dir is not None and os.path.isfile(flags.log_dir):
        raise UsageError(f"--log-dir {flags.log_dir} is a file: name a folder")
    try:
        if flags.logs_specs is not None:
            specs: LogsSpecs = _get_logs_specs_class(flags.logs_specs)(**common)
            return specs
        return RoundLogsSpecs(**common, capture_stderr=command is not None and not command.is_python)
    except OSError as error:
        where = f"--log-dir {flags.log_dir}" if flags.log_dir else "no --log-dir, so a temporary one"
        raise UsageError(f"{where}: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"--logs-specs: {error}") from None


def _streams(flag: str, text: str) -> Std | dict[int, Std]:
    try:
        return Std.from_str(text)
    except ValueError:
        example = "0 none, 1 stdout, 2 stderr, 3 both, or by local rank 0:1,1:3"
        raise UsageError(f"{flag} {text!r} names no streams: {example}") from None


if __name__ == "__main__":
    main()
