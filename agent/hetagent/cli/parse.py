"""From the command line and the environment to checked options."""

import contextlib
import os
import signal
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, cast

from hetagent.cli import slurm
from hetagent.cli.flags import SPEC_FLAGS, parser
from hetagent.errors import UsageError
from hetagent.launch.kinds import OWN_FLAGS
from hetagent.node.names import host_name
from hetagent.node.standalone import fresh_group
from hetagent.options.model import Options, TorchrunOptions
from hetagent.options.parts import preload, snapshot_options, watches_spot
from hetagent.options.torchrun import REFUSED, dest, source, typed, variable
from hetagent.options.values import GRACE_S, UNHANDLED, Streams, grace, is_on, streams
from hetrdzv.client import servers_from
from hetrdzv.protocol.texts.ids import checked_id
from hetrdzv.protocol.texts.phrasing import count
from hetrdzv.protocol.texts.typed import nodes, seconds

T = TypeVar("T")

RARE = frozenset({"--group", "--nnodes", "--server", "--standalone"})
"""Flags of one word that scripts hardly have themselves."""

SAME: Sequence[tuple[str, str]] = (("gpus", "nproc_per_node"), ("local_addr", "interface"))
"""Flags that mean the same thing, so that at most one of them can be given."""


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Parse and check a command line.

    Raises:
        UsageError: flags contradict each other or cannot apply here.
        SystemExit: after --help and --version.
    """
    ours = parser()
    args = ours.parse_args(argv)
    _refuse(args)
    grace_s = _or_variable(args.grace_s, "HET_GRACE_S", grace, environ)
    filled = slurm.fill(args, environ, _given_group(args, environ), _nnodes(args), _signals(args))
    if args.collapse and args.redirects == args.tee == "0":
        args.tee = "3"
    return _options(
        Options,
        args,
        servers=_servers(args, environ),
        group=_group(args, environ),
        node_id=_node_id(args),
        node_id_given=args.node_id is not None,
        standalone=bool(args.standalone),
        labels=dict(args.label or ()),
        spec=_spec(args),
        signals=_signals(args),
        report_output=is_on(args.report_output, "HET_REPORT_OUTPUT", environ),
        launch_flags={name: getattr(args, name) for name in map(dest, OWN_FLAGS)},
        shutdown_timeout_s=_or_variable(
            args.shutdown_timeout, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", seconds, environ
        ),
        grace_s=GRACE_S if grace_s is None else grace_s,
        own_graces_s=getattr(args, "own_graces_s", {}),
        script=args.training_script,
        script_args=tuple(args.training_script_args),
        notes=(*filled, *_ignored(environ), *_misplaced(args, ours.flags())),
        torchrun=_torchrun(args),
        node_check=args.node_check or environ.get("HET_NODE_CHECK", ""),
        ready_file=Path(args.ready_file).absolute() if args.ready_file else None,
        watches_spot=watches_spot(args, environ),
        leave_when=args.leave_when or environ.get("HET_LEAVE_WHEN", ""),
        preload=preload(args, environ),
        snapshots=snapshot_options(args, environ),
    )


def _misplaced(args: Namespace, ours: Iterable[str]) -> Sequence[str]:
    """What to say of flags of ours that were typed after the script, unless it mentions them: it gets them then."""
    words = {word.partition("=")[0] for word in args.training_script_args}
    found = [flag for flag in sorted(words & set(ours)) if flag in RARE or "-" in flag[2:]]
    text, script = "", args.training_script
    if found and not (args.module or args.no_python) and os.path.isfile(script):
        with contextlib.suppress(OSError):
            text = Path(script).read_text(encoding="utf-8", errors="replace")
    return [
        f"warning: {flag} after {script} goes to the script; if hetagent should get it, put it before {script}"
        for flag in found
        if flag not in text and not ("-" in flag[2:] and dest(flag) in text)
    ]


def _torchrun(args: Namespace) -> TorchrunOptions:
    return _options(
        TorchrunOptions,
        args,
        role=_id(source("--role", args.role), args.role),
        module=bool(args.module),
        no_python=bool(args.no_python),
        run_path=bool(args.run_path),
        virtual_local_rank=bool(args.virtual_local_rank),
        log_line_prefix_template=args.log_line_prefix_template or None,
        redirects=_streams("--redirects", args.redirects),
        tee=_streams("--tee", args.tee),
        local_ranks_filter=_ranks(args.local_ranks_filter),
        duplicate_stdout_filters=tuple(args.duplicate_stdout_filters),
        duplicate_stderr_filters=tuple(args.duplicate_stderr_filters),
    )


def _options(kind: type[T], args: Namespace, **made: object) -> T:
    """Options, of which those that nobody has made anything of are as they were given."""
    names = {field.name for field in fields(cast(Any, kind))}
    return kind(**made, **{name: getattr(args, name) for name in names - made.keys()})


# -- what cannot be meant ------------------------------------------------------------------------------------


def _refuse(args: Namespace) -> None:
    """Refuse flags that cannot apply, contradict each other or mean nothing on their own."""
    if args.check and args.standalone:
        raise UsageError(
            "--check looks at servers and other nodes, and --standalone has none: leave one of them out"
        )
    refused = [f"{flag}: {why}" for flag, why in REFUSED.items() if getattr(args, dest(flag)) is not None]
    if len(refused) == 1:
        raise UsageError(refused[0].replace(":", " cannot be used with hetagent:", 1))
    if refused:
        raise UsageError("\n  ".join(["these flags cannot be used with hetagent:", *refused]))
    if args.gpus is not None and args.nproc_per_node == os.environ.get("PET_NPROC_PER_NODE"):
        args.nproc_per_node = None
    for one, other in SAME:
        if getattr(args, one) is not None and getattr(args, other) is not None:
            flags = (f"--{name.replace('_', '-')}" for name in (one, other))
            raise UsageError(f"{' and '.join(flags)} mean the same thing: give only one")
    if args.training_script is None and (args.module or args.no_python or args.run_path):
        flag = "--module" if args.module else "--no-python" if args.no_python else "--run-path"
        raise UsageError(f"{flag} says how to start a script, but there is none: add it after the flags")


def _ignored(environ: Mapping[str, str]) -> list[str]:
    """Notes on the variables of refused flags."""
    return [
        f"ignoring {variable(flag)}: {reason}"
        for flag, reason in REFUSED.items()
        if environ.get(variable(flag))
    ]


def _id(name: str, value: str) -> str:
    try:
        return checked_id(value)
    except ValueError as error:
        raise UsageError(f"{name} {error}") from None


# -- who and where -------------------------------------------------------------------------------------------


def _servers(args: Namespace, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The servers' URLs; none with --standalone."""
    if args.standalone:
        if args.server:
            raise UsageError("--standalone starts its own server: leave --server out")
        return ()
    urls = args.server or environ.get("HET_SERVER")
    if not urls:
        behind = next(
            (flag for flag in ("--server", "--standalone") if flag in args.training_script_args), None
        )
        if behind is not None:
            script = args.training_script
            raise UsageError(
                f"{behind} comes after {script}, so it belongs to the script: put it before {script}"
            )
        raise UsageError(
            "no server: give --server http://host:29400 (or set HET_SERVER), or --standalone for one node"
        )
    try:
        return tuple(servers_from(urls))
    except ValueError as error:
        raise UsageError(f"{'--server' if args.server else 'HET_SERVER'}: {error}") from None


def _node_id(args: Namespace) -> str:
    if args.node_id is not None:
        return _id("--node-id", args.node_id)
    try:
        return host_name()
    except ValueError as error:
        raise UsageError(f"{error}: give --node-id") from None


def _given_group(args: Namespace, environ: Mapping[str, str]) -> str | None:
    """The group that was named; an empty name, from an unset shell variable, counts as given and is refused later."""
    given: tuple[str | None, ...] = (args.group, args.rdzv_id, environ.get("HET_GROUP") or None)
    return next((named for named in given if named is not None), None)


def _group(args: Namespace, environ: Mapping[str, str]) -> str:
    if args.group is not None and args.rdzv_id not in (None, args.group, os.environ.get("PET_RDZV_ID")):
        raise UsageError(
            f"--group is {args.group!r}, but --rdzv-id is {args.rdzv_id!r}: they mean the same thing, give only one"
        )
    group = _given_group(args, environ)
    if group is None:
        return fresh_group() if args.standalone else "default"
    if args.group is not None:
        return _id("--group", group)
    if args.rdzv_id is None:
        return _id("HET_GROUP", group)
    return _id(source("--rdzv-id", group), group)


# -- values --------------------------------------------------------------------------------------------------


def _spec(args: Namespace) -> dict[str, object]:
    """The settings of the group that were given."""
    spec: dict[str, object] = {
        name: getattr(args, name) for name in SPEC_FLAGS if getattr(args, name) is not None
    }
    if args.max_restarts is not None:
        spec["max_restarts"] = int(args.max_restarts)
    if (nnodes := _nnodes(args)) is not None:
        spec["min_nodes"], spec["max_nodes"] = nnodes
    if args.world_size is not None:
        bounds = zip(("min_world_size", "max_world_size"), args.world_size, strict=True)
        spec |= {name: value for name, value in bounds if value is not None}
    if args.standalone:
        if spec.get("min_nodes", 1) != 1 or spec.get("max_nodes", 1) != 1:
            raise UsageError(
                f"--standalone is for one node: leave {source('--nnodes', args.nnodes)} out, or start a hetserver "
                "for several nodes"
            )
        least, most = args.world_size or (None, None)
        slots = str(args.gpus or args.nproc_per_node or "")
        if slots.isdecimal() and not (least or 0) <= int(slots) <= (most or int(slots)):
            raise UsageError(
                f"--standalone is for one node, which has {count(int(slots), 'worker')} here, and --world-size "
                "rules that out: leave --world-size out, or start a hetserver for several nodes"
            )
        spec["min_nodes"] = spec["max_nodes"] = 1
    return spec


def _nnodes(args: Namespace) -> tuple[int, int] | None:
    """The fewest and most nodes of the group."""
    if args.nnodes is None:
        return None
    try:
        return nodes(args.nnodes)
    except ValueError as error:
        raise UsageError(f"{source('--nnodes', args.nnodes)}: {error}") from None


def _signals(args: Namespace) -> tuple[signal.Signals, ...]:
    """The signals on which the agent leaves."""
    text: str = args.signals_to_handle
    names = [name for part in text.split(",") if (name := part.strip())]
    known = signal.Signals.__members__
    for name in names:
        if name not in known:
            raise UsageError(f"{typed('--signals-to-handle', text)}: there is no signal {name!r}")
        if known[name] in UNHANDLED:
            raise UsageError(f"{typed('--signals-to-handle', text)}: no program can handle {name}")
    return tuple(known[name] for name in names)


def _streams(flag: str, text: str) -> Streams:
    try:
        return streams(text)
    except ValueError as error:
        raise UsageError(f"{typed(flag, text)} does not name streams: {error}") from None


def _ranks(text: str) -> frozenset[int] | None:
    if not text:
        return None
    try:
        return frozenset(int(rank) for rank in text.split(","))
    except ValueError:
        raise UsageError(
            f"{typed('--local-ranks-filter', text)} must be local ranks, for example 0,1"
        ) from None


def _or_variable(
    given: float | None, variable: str, read: Callable[[str], float], environ: Mapping[str, str]
) -> float | None:
    """A flag's value, else what a variable says; None: neither says anything."""
    text = environ.get(variable)
    if given is not None or not text:
        return given
    try:
        return read(text)
    except ValueError as error:
        raise UsageError(f"{variable}={text}: {error}") from None
