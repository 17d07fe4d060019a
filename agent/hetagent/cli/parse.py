"""From the command line and the environment to checked options."""

import contextlib
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, cast

from hetagent.cli import slurm
from hetagent.cli.flags import FLAGS, SPEC_FLAGS, parse_flags
from hetagent.errors import UsageError
from hetagent.node.names import host_name
from hetagent.node.standalone import make_group_id
from hetagent.options.model import Options, SnapshotOptions, TorchrunOptions
from hetagent.options.torchrun import REFUSED, SIGNALS, dest, spellings, variable
from hetagent.options.values import GRACE_S

T = TypeVar("T")

RARE = frozenset({"--group", "--nnodes", "--server", "--standalone"})
"""Flags of one word that scripts hardly have themselves."""

SAME: Sequence[tuple[str, str]] = (
    ("group", "rdzv_id"),
    ("gpus", "nproc_per_node"),
    ("interface", "local_addr"),
)
"""Flags of ours and of torchrun that mean the same thing, so that two values contradict each other."""


def parse_command_line(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Parse and check a command line.

    Raises:
        UsageError: flags contradict each other or cannot apply here.
        SystemExit: after --help and --version.
    """
    args = parse_flags(argv, environ)
    _refuse_contradictions(args)
    for ours, theirs in SAME:  # what was typed counts more than the variable of the other
        if {ours, theirs} & args.given:
            setattr(args, theirs if ours in args.given else ours, None)
    args.group = args.rdzv_id if args.group is None else args.group
    filled = slurm.fill_defaults(args, environ)
    if args.collapse and args.redirects == args.tee == 0:
        args.tee = 3
    made = {
        "servers": _parse_servers(args),
        "group": args.group or (make_group_id() if args.standalone else "default"),
        "node_id": args.node_id or host_name("--node-id"),
        "labels": dict(args.label),
        "spec": _parse_group_spec(args),
        "signals": SIGNALS if args.signals_to_handle is None else args.signals_to_handle,
        "report_output": args.report_output == "on",
        "shutdown_timeout_s": args.shutdown_timeout,
        "grace_s": GRACE_S if args.grace_s is None else args.grace_s,
        "script": args.training_script,
        "script_args": tuple(args.training_script_args),
        "notes": (*filled, *_describe_misplaced_flags(args)),
        "torchrun": _pick_options(TorchrunOptions, vars(args)),
        "snapshots": _pick_options(SnapshotOptions, vars(args), "snapshot_"),
    }
    return _pick_options(Options, vars(args) | made)


def _describe_misplaced_flags(args: Namespace) -> Sequence[str]:
    """What to say of flags of ours that were typed after the script, unless it mentions them: it gets them then."""
    ours = {spelling for flag in FLAGS for spelling in spellings(flag)}
    words = {word.partition("=")[0] for word in args.training_script_args}
    found = [flag for flag in sorted(words & ours) if flag in RARE or "-" in flag[2:]]
    text, script = "", args.training_script
    if found and not (args.module or args.no_python) and os.path.isfile(script):
        with contextlib.suppress(OSError):
            text = Path(script).read_text(encoding="utf-8", errors="replace")
    return [
        f"warning: {flag} after {script} goes to the script; if hetagent should get it, put it before {script}"
        for flag in found
        if flag not in text and not ("-" in flag[2:] and dest(flag) in text)
    ]


def _pick_options(kind: type[T], values: Mapping[str, object], prefix: str = "") -> T:
    """Options, by their names."""
    return kind(**{field.name: values[f"{prefix}{field.name}"] for field in fields(cast(Any, kind))})


# -- what cannot be meant ------------------------------------------------------------------------------------


def _refuse_contradictions(args: Namespace) -> None:
    """Refuse flags that cannot apply, contradict each other or mean nothing on their own."""
    if args.check and args.standalone:
        raise UsageError(
            "--check looks at servers and other nodes, and --standalone has none: leave one of them out"
        )
    refused = [f"{flag}: {why}" for flag, why in REFUSED.items() if dest(flag) in args.given]
    if len(refused) == 1:
        raise UsageError(refused[0].replace(":", " cannot be used with hetagent:", 1))
    if refused:
        raise UsageError("\n  ".join(["these flags cannot be used with hetagent:", *refused]))
    for ours, theirs in SAME:
        if {ours, theirs} <= args.given and getattr(args, ours) != getattr(args, theirs):
            flags = (f"--{name.replace('_', '-')}" for name in (ours, theirs))
            raise UsageError(f"{' and '.join(flags)} mean the same thing: give only one")
    for flag in ("--module", "--no-python", "--run-path", "--standalone"):
        if args.training_script is None and getattr(args, dest(flag)):
            raise UsageError(f"{flag} needs a script, but there is none: add it after the flags")
    if args.snapshot_to is None and args.given & {"snapshot_to_every_s", "snapshot_keep"}:
        raise UsageError(
            "--snapshot-to-every-s and --snapshot-keep: nothing is written without --snapshot-to DIR"
        )
    if args.snapshot_to is not None and args.snapshot_memory == 0:
        raise UsageError("--snapshot-to needs snapshots, and --snapshot-memory turns them off")


# -- who and where -------------------------------------------------------------------------------------------


def _parse_servers(args: Namespace) -> tuple[str, ...]:
    """The servers' URLs; none with --standalone."""
    if args.standalone:
        if "server" in args.given:
            raise UsageError("--standalone starts its own server: leave --server out")
        return ()
    if args.server is None:
        raise UsageError(
            "no server: give --server http://host:29400 (or set HET_SERVER), or --standalone for one node; "
            "both come before the script"
        )
    return tuple(args.server)


def _parse_group_spec(args: Namespace) -> dict[str, object]:
    """The settings of the group that were given."""
    spec: dict[str, object] = {
        name: getattr(args, name) for name in SPEC_FLAGS if getattr(args, name) is not None
    }
    if args.max_restarts is not None:
        spec["max_restarts"] = args.max_restarts
    if args.nnodes is not None:
        spec["min_nodes"], spec["max_nodes"] = args.nnodes
    if args.world_size is not None:
        bounds = zip(("min_world_size", "max_world_size"), args.world_size, strict=True)
        spec |= {name: value for name, value in bounds if value is not None}
    if args.standalone:
        if spec.get("min_nodes", 1) != 1 or spec.get("max_nodes", 1) != 1:
            named = "--nnodes" if "nnodes" in args.given else variable("--nnodes")
            raise UsageError(
                f"--standalone is for one node: leave {named} out, or start a hetserver for several nodes"
            )
        spec["min_nodes"] = spec["max_nodes"] = 1
    return spec
