"""hetagent's command line: torchrun's own parser, our flags beside it, what of torchrun's cannot apply."""

import math
import os
import signal
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.run import get_args_parser, parse_min_max_nnodes

from hetagent import ids, slurm
from hetagent.network import parse_port_range
from hetrdzv import __version__
from hetrdzv.client import servers_from

REFUSED: Mapping[str, str] = {
    "--master-addr": "the server chooses the master of every round",
    "--master-port": "the master's agent holds a free port; --port-range bounds it",
    "--node-rank": "the server gives the ranks",
    "--rdzv-backend": "hetagent always uses hetserver: give --server URL (torchrun itself takes hetrdzv there)",
    "--rdzv-endpoint": "give --server URL",
    "--rdzv-conf": "the settings of a group are flags of their own, such as --last-call-s",
    "--start-method": "workers are always started as programs of their own",
}
"""Flags of torchrun that cannot apply, each with the reason.

Their PET_ variables are not obeyed, but no error: what starts containers for torchrun sets them for all.
"""

OWN_HELP: Mapping[str, str] = {
    "nnodes": "How many nodes, N or MIN:MAX (default: Slurm's, or whoever is there after the last call).",
    "nproc_per_node": "torchrun's way to say --gpus: N workers, whatever they run on; gpu, cpu, xpu, auto.",
    "run_path": "Accepted: scripts are run that way anyhow. Wins over --no-python.",
    "rdzv_id": "torchrun's way to say --group.",
    "standalone": "Bring a hetserver along, for a job on this node only.",
    "max_restarts": "How often failures may restart the group (default 3).",
    "monitor_interval": "Not needed: the end of a worker is seen at once.",
    "local_addr": "The address that this node offers (default: that of its connection to the server).",
    "shutdown_timeout": "Seconds from SIGTERM to SIGKILL on this node (default: --stop-timeout-s).",
}
"""What torchrun's flags mean here, where torchrun's own help would mislead."""


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ArgumentTypeError(f"{text} is not a number of seconds")
    return seconds


SPEC_FLAGS: Mapping[str, tuple[Callable[[str], object], str]] = {
    "join_timeout_s": (
        _seconds,
        "Seconds until the group fails when its nodes do not come together (default 600).",
    ),
    "last_call_s": (_seconds, "Seconds a round waits for more nodes once it has enough (default 10)."),
    "replace_wait_s": (
        _seconds,
        "Seconds a loss waits for a replacement before the group shrinks (default 0).",
    ),
    "stop_timeout_s": (_seconds, "Seconds workers have between SIGTERM and SIGKILL (default 30)."),
    "lease_s": (_seconds, "Seconds the server believes in a node that it does not hear from (default 5)."),
    "max_disconnect_s": (
        _seconds,
        "Seconds without any server after which an agent stops its workers (default 600).",
    ),
    "on_join": (str, "What a joiner does to a running group: restart (default) or spare."),
}
"""Fields of the group's spec with a flag of their own name; --nnodes and --max-restarts are torchrun's."""


TORCHRUNS_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""torchrun's default for --signals-to-handle."""

LAUNCHES: Mapping[str, str] = {
    "gpu": "a process per GPU, as torchrun does (default)",
    "node": "a process per node, with {rank_offset}, {world_size}, ... filled in",
    "horovod": "a process per GPU that calls hvd.init(), without mpirun and ssh",
    "mpi": "a process per GPU by mpirun (Open MPI 4), without ssh",
}
"""Values of --launch."""


class UsageError(ValueError):
    """A command line that makes no sense; the text says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line, checked; None stands for: not given."""

    servers: tuple[str, ...]
    group: str
    node_id: str
    gpus: str | None
    nproc_per_node: str | None
    device: str
    token_file: Path | None
    ca_cert: Path | None
    client_cert: Path | None
    client_key: Path | None
    standalone: bool
    local_addr: str | None
    interface: str | None
    port_range: tuple[int, int] | None
    local_ranks_filter: frozenset[int] | None
    labels: Mapping[str, str]
    connect_timeout_s: float
    spec: Mapping[str, object]
    signals: tuple[signal.Signals, ...]
    launch: str
    init_file: Path | None
    isolate_gpus: bool
    shutdown_timeout_s: float | None
    script: str | None
    script_args: tuple[str, ...]
    notes: tuple[str, ...]
    torchrun: Namespace


def parser() -> ArgumentParser:
    """torchrun's parser, extended; nothing that was not given has a value.

    Raises:
        UsageError: a PET_ variable of a switch is not 0 or 1.
    """
    try:
        made = get_args_parser()
    except ValueError as error:
        raise UsageError(
            f"a PET_ variable that switches something on or off must be 0 or 1: {error}"
        ) from None
    made.allow_abbrev = False  # a script's own --log must not be taken for one of ours
    made.prog = "hetagent"
    made.usage = "hetagent [--gpus N] (--server URL | --standalone) [flags] [script [its arguments]]"
    made.description = (
        "Start this node's workers for a job whose ranks a hetserver gives. torchrun's flags apply."
    )
    refused = {_dest(flag) for flag in REFUSED}
    for action in made._actions:
        if action.dest == "training_script":
            action.nargs, action.required, action.default = "?", False, None
            action.help = (
                "The training script, followed by its arguments; without one the group's command is used."
            )
        elif action.dest in refused:
            action.default, action.help = None, SUPPRESS
        elif f"PET_{action.dest.upper()}" not in os.environ and action.dest not in _TORCHRUN_DEFAULTS_KEPT:
            action.default = None
        action.help = OWN_HELP.get(action.dest, action.help)
    ours = made.add_argument_group("hetrdzv")
    ours.add_argument(
        "--gpus",
        metavar="N|auto|LIST",
        help="How many GPUs, all of them, or which: 4, auto, 0,2,3 (default: Slurm's, or all).",
    )
    ours.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="auto, cuda: GPUs (default); cpu: start N CPU workers.",
    )
    ours.add_argument(
        "--launch", choices=LAUNCHES, default="gpu", help=_list("How to start workers:", LAUNCHES)
    )
    ours.add_argument(
        "--init-file",
        type=Path,
        metavar="DIR",
        help="With --launch node: {init_method} is a new file:// name per round in this shared directory.",
    )
    ours.add_argument(
        "--isolate-gpus", action="store_true", help="Each worker sees its own GPU only; LOCAL_RANK stays."
    )
    ours.add_argument("--server", metavar="URL[,URL...]", help="Where hetserver is (or HET_SERVER).")
    ours.add_argument(
        "--group", metavar="ID", help="Which job (or HET_GROUP, --rdzv-id; default: default, or Slurm's job)."
    )
    ours.add_argument(
        "--node-id", metavar="ID", help="This node's stable name (default: Slurm's, or the host name)."
    )
    ours.add_argument(
        "--token-file", type=Path, metavar="FILE", help="File with a token of the server (or HET_TOKEN)."
    )
    for flag, text in {
        "--ca-cert": "Authority of the server's certificate, PEM (or HET_CA_CERT).",
        "--client-cert": "Certificate to show to the server, PEM (or HET_CLIENT_CERT).",
        "--client-key": "Key of --client-cert, PEM (or HET_CLIENT_KEY).",
    }.items():
        ours.add_argument(flag, type=Path, metavar="FILE", help=text)
    ours.add_argument("--interface", metavar="NAME", help="Network interface whose address is offered.")
    ours.add_argument(
        "--port-range", type=_port_range, metavar="A-B", help="Ports that may be offered (firewalls)."
    )
    ours.add_argument(
        "--label", action="append", type=_label, metavar="KEY=VALUE", help="A label of this node; repeatable."
    )
    ours.add_argument(
        "--connect-timeout-s",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="Seconds to keep trying while no server has ever answered (default 60).",
    )
    for name, (kind, text) in SPEC_FLAGS.items():
        choices = ("restart", "spare") if name == "on_join" else None
        flag = f"--{name.replace('_', '-')}"
        ours.add_argument(
            flag, dest=name, type=kind, choices=choices, help=text, metavar=None if choices else "S"
        )
    ours.add_argument("--version", action="version", version=f"hetagent {__version__}")
    return made


_TORCHRUN_DEFAULTS_KEPT = {
    "role",
    "redirects",
    "tee",
    "local_ranks_filter",
    "event_log_handler",
    "signals_to_handle",
    "duplicate_stdout_filters",
    "duplicate_stderr_filters",
    "help",
    "training_script_args",
}


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Parse and check a command line.

    Raises:
        UsageError: flags that contradict each other or cannot apply here.
        SystemExit: argparse's own errors, with status 2, and --help.
    """
    args = parser().parse_args(list(argv))
    for flag, reason in REFUSED.items():
        if getattr(args, _dest(flag)) is not None:
            raise UsageError(f"{flag} cannot be used with hetagent: {reason}")
    if args.gpus is not None and args.nproc_per_node is not None:
        if args.nproc_per_node != os.environ.get("PET_NPROC_PER_NODE"):
            raise UsageError("--gpus and --nproc-per-node say the same: give one of them")
        args.nproc_per_node = None
    if args.local_addr is not None and args.interface is not None:
        raise UsageError("--local-addr and --interface say the same: give one of them")
    _id("--role", args.role)
    from_slurm = _fill_from_slurm(args, environ)
    if args.training_script is None and (args.module or args.no_python or args.run_path):
        flag = "--module" if args.module else "--no-python" if args.no_python else "--run-path"
        raise UsageError(f"{flag} says how to start a script, but none was given: add it behind the flags")
    return Options(
        servers=_servers(args, environ),
        group=_group(args, environ),
        node_id=_node_id(args),
        gpus=args.gpus,
        nproc_per_node=args.nproc_per_node,
        device=args.device,
        token_file=args.token_file,
        ca_cert=args.ca_cert,
        client_cert=args.client_cert,
        client_key=args.client_key,
        standalone=bool(args.standalone),
        local_addr=args.local_addr,
        interface=args.interface,
        port_range=args.port_range,
        local_ranks_filter=_ranks(args.local_ranks_filter),
        labels=dict(args.label or ()),
        connect_timeout_s=args.connect_timeout_s,
        spec=_spec(args),
        signals=tuple(dict.fromkeys((*_signals(args.signals_to_handle), *from_slurm.signals))),
        launch=args.launch,
        init_file=args.init_file,
        isolate_gpus=args.isolate_gpus,
        shutdown_timeout_s=_shutdown_timeout_s(args, environ),
        script=args.training_script,
        script_args=tuple(args.training_script_args),
        notes=(
            *from_slurm.notes,
            *(
                f"PET_{_dest(flag).upper()} is not obeyed: {reason}"
                for flag, reason in REFUSED.items()
                if environ.get(f"PET_{_dest(flag).upper()}")
            ),
        ),
        torchrun=args,
    )


def _list(text: str, values: Mapping[str, str]) -> str:
    return f"{text} {'; '.join(f'{name}: {what}' for name, what in values.items())}."


def _fill_from_slurm(args: Namespace, environ: Mapping[str, str]) -> slurm.Defaults:
    """Fill in what a job step of Slurm knows and nobody gave."""
    given = slurm.Given(
        group=_given_group(args, environ),
        node_id=args.node_id,
        gpus=args.gpus,
        workers=args.nproc_per_node,
        cpu=args.device == "cpu",
        nnodes=_nnodes(args),
        signals=None if args.signals_to_handle == TORCHRUNS_SIGNALS else _signals(args.signals_to_handle),
        standalone=bool(args.standalone),
    )
    try:
        found = slurm.defaults(environ, given)
    except slurm.SlurmError as error:
        raise UsageError(str(error)) from None
    for name in ("group", "node_id", "gpus", "nnodes"):
        if (value := getattr(found, name)) is not None:
            setattr(args, name, str(value))
    return found


def _dest(flag: str) -> str:
    return flag[2:].replace("-", "_")


def _servers(args: Namespace, environ: Mapping[str, str]) -> tuple[str, ...]:
    """None where the agent brings its own."""
    if args.standalone:
        if args.server:
            raise UsageError("--standalone brings its own server: leave --server out")
        return ()
    given = args.server or environ.get("HET_SERVER")
    if not given:
        raise UsageError(
            "no server: give --server http://host:29400 (or set HET_SERVER), or --standalone for one node"
        )
    try:
        return tuple(servers_from(given))
    except ValueError as error:
        raise UsageError(f"{'--server' if args.server else 'HET_SERVER'}: {error}") from None


def _node_id(args: Namespace) -> str:
    if args.node_id is not None:
        return _id("--node-id", args.node_id)
    try:
        return ids.host_name()
    except ValueError as error:
        raise UsageError(f"{error}: give --node-id") from None


def _group(args: Namespace, environ: Mapping[str, str]) -> str:
    if args.group is not None and args.rdzv_id not in (None, args.group, os.environ.get("PET_RDZV_ID")):
        raise UsageError(
            f"--group is {args.group!r}, --rdzv-id {args.rdzv_id!r}: they say the same, give one of them"
        )
    group = _given_group(args, environ)
    return "default" if group is None else _id("--group", group)


def _given_group(args: Namespace, environ: Mapping[str, str]) -> str | None:
    """An empty one counts as given, and is refused: it comes from a variable of a shell that is not set."""
    given: tuple[str | None, ...] = (args.group, args.rdzv_id, environ.get("HET_GROUP") or None)
    return next((group for group in given if group is not None), None)


def _id(flag: str, value: str) -> str:
    try:
        return ids.checked(value)
    except ValueError as error:
        raise UsageError(f"{flag} {error}") from None


def _spec(args: Namespace) -> dict[str, object]:
    """The fields of the group's spec that were given."""
    spec: dict[str, object] = {
        name: getattr(args, name) for name in SPEC_FLAGS if getattr(args, name) is not None
    }
    if args.max_restarts is not None:
        spec["max_restarts"] = int(args.max_restarts)
    if (nnodes := _nnodes(args)) is not None:
        spec["min_nodes"], spec["max_nodes"] = nnodes
    if args.standalone:
        if spec.get("min_nodes", 1) != 1 or spec.get("max_nodes", 1) != 1:
            raise UsageError(
                "--standalone is for one node: leave --nnodes out, or start hetserver for several"
            )
        spec["min_nodes"] = spec["max_nodes"] = 1
    return spec


def _nnodes(args: Namespace) -> tuple[int, int] | None:
    if args.nnodes is None:
        return None
    try:
        fewest, most = parse_min_max_nnodes(args.nnodes)
    except (ValueError, RuntimeError):
        raise UsageError(f"--nnodes {args.nnodes!r} must be N or MIN:MAX, for example 2 or 2:4") from None
    if not 0 < fewest <= most:
        raise UsageError(f"--nnodes {args.nnodes}: MIN must be at least 1, and MAX not below MIN")
    return fewest, most


def _signals(names: str) -> tuple[signal.Signals, ...]:
    found = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        try:
            found.append(signal.Signals[name])
        except KeyError:
            raise UsageError(f"--signals-to-handle: there is no signal {name!r}") from None
        if found[-1] in (signal.SIGKILL, signal.SIGSTOP):
            raise UsageError(f"--signals-to-handle: no program can handle {name}")
    return tuple(found)


def _ranks(text: str) -> frozenset[int] | None:
    if not text:
        return None
    try:
        return frozenset(int(rank) for rank in text.split(","))
    except ValueError:
        raise UsageError(f"--local-ranks-filter {text!r} must be local ranks, for example 0,1") from None


def _shutdown_timeout_s(args: Namespace, environ: Mapping[str, str]) -> float | None:
    """On this node; torchrun has a variable for it, too."""
    given = args.shutdown_timeout
    if given is None:
        given = environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT") or None
    try:
        return None if given is None else _seconds(str(given))
    except (ValueError, ArgumentTypeError):
        raise UsageError(f"--shutdown-timeout {given} is not a number of seconds") from None


def _port_range(text: str) -> tuple[int, int]:
    try:
        first, last = parse_port_range(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    if first == last:
        raise ArgumentTypeError(f"port range '{text}' is too small: a node takes two ports")
    return first, last


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ArgumentTypeError(f"{text!r} must be KEY=VALUE")
    return key, value
