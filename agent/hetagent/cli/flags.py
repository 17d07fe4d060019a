"""hetagent's flags: torchrun's and ours. Nothing here imports torch."""

import re
from argparse import REMAINDER, SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace, _ArgumentGroup
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from hetagent.cli import usage
from hetagent.errors import UsageError
from hetagent.launch.kinds import DEFAULT_LAUNCH, LAUNCHES
from hetagent.node.network import parse_port_range
from hetagent.options.model import KEEP, SHM, SPOT, TO_EVERY_S
from hetagent.options.torchrun import (
    ACCEPTED,
    REFUSED,
    WITHOUT_VARIABLE,
    Flag,
    dest,
    make_switch,
    spellings,
    variable,
)
from hetagent.options.values import (
    AUTO,
    GRACE_S,
    ON_OFF,
    parse_absolute,
    parse_directory,
    parse_grace,
    parse_modules,
    parse_positive,
    parse_signal,
    parse_size,
    parse_switch,
)
from hetagent.session.backoff import CONNECT_TIMEOUT_S
from hetagent.snapshots.folder import EVERY_S
from hetrdzv import __version__
from hetrdzv.client import parse_server_urls
from hetrdzv.protocol.settings import SETTINGS, Setting, setting_text
from hetrdzv.protocol.texts import parsing
from hetrdzv.protocol.texts.ids import check_id

SPEC_FLAGS: Mapping[str, Setting] = {name: setting for name, setting in SETTINGS.items() if setting.help}
"""Settings of the group with a flag of their own name; --nnodes and --max-restarts are torchrun's."""

OF_NODE: Mapping[str, Flag] = {
    "--launch": Flag(
        f"How to start workers: {'; '.join(f'{name}: {style.help}' for name, style in LAUNCHES.items())}.",
        default=DEFAULT_LAUNCH,
        choices=LAUNCHES,
    ),
    "--gpus": Flag(
        "How many GPUs, all of them, or which ones: 4, auto, 0,2,3 (default: Slurm's, or all).",
        metavar="N|auto|LIST",
    ),
    "--device": Flag(
        "auto, cuda: GPUs (default); cpu: start N CPU workers.",
        default="auto",
        choices=("auto", "cuda", "cpu"),
    ),
    "--report-output": Flag(
        "Report the end of what workers write, and their stacks, to the server (or HET_REPORT_OUTPUT; default on).",
        default="on",
        variable="HET_REPORT_OUTPUT",
        choices=ON_OFF,
    ),
    "--notice-signal": Flag(
        "Signal for workers that handle it, before a planned end of their round.",
        parse_signal,
        metavar="SIGUSR1",
    ),
    "--grace-s": Flag(
        "Seconds from SIGTERM until this node is killed, in which workers that ask for it may save "
        f"(or HET_GRACE_S; default: {GRACE_S:g}; 0: they are stopped at once).",
        parse_grace,
        variable="HET_GRACE_S",
        metavar="S",
    ),
    "--exit-codes": Flag(
        "When a worker fails the job, exit with its code (worker, default), or always with 1 (agent).",
        default="worker",
        choices=("worker", "agent"),
    ),
    "--require-rendezvous": make_switch(
        "Fail a job whose workers succeed without ever connecting (init_process_group); give it on every node."
    ),
    "--isolate-gpus": make_switch("Each worker sees only its own GPU; LOCAL_RANK stays as it is."),
    "--init-file": Flag(
        "With --launch node: {init_method} names a new file in this shared directory each round.",
        parse_absolute,
        metavar="DIR",
    ),
    "--server": Flag(
        "The hetserver to use (or HET_SERVER).",
        parse_server_urls,
        variable="HET_SERVER",
        metavar="URL[,URL...]",
    ),
    "--group": Flag(
        "The job to join (or HET_GROUP, --rdzv-id; default: Slurm's, or 'default'; --standalone: a new one).",
        check_id,
        variable="HET_GROUP",
        metavar="ID",
    ),
    "--node-id": Flag(
        "This node's stable name (default: Slurm's, or the host name; HOST.2 for a second agent here).",
        check_id,
        metavar="ID",
    ),
    "--token-file": Flag("File with a token for the server (or HET_TOKEN).", parse_absolute, metavar="FILE"),
    "--ca-cert": Flag(
        "CA that signed the server's certificate, PEM (or HET_CA_CERT).", parse_absolute, metavar="FILE"
    ),
    "--client-cert": Flag(
        "Certificate to present to the server, PEM (or HET_CLIENT_CERT).", parse_absolute, metavar="FILE"
    ),
    "--client-key": Flag(
        "Private key of --client-cert, PEM (or HET_CLIENT_KEY).", parse_absolute, metavar="FILE"
    ),
    "--interface": Flag("The network interface whose address this node offers.", metavar="NAME"),
    "--port-range": Flag("The ports this node may offer (for firewalls).", parse_port_range, metavar="A-B"),
    "--label": Flag(
        "A label for this node; repeatable.", parsing.parse_label, (), metavar="KEY=VALUE", repeats=True
    ),
    "--weight": Flag(
        "How fast each worker here is, compared with those of other nodes: for shares, which otherwise "
        "follow the time that workers need (default, if any node has one: 1).",
        parsing.parse_weight,
        metavar="X",
    ),
    "--world-size": Flag(
        "How many workers the job may have in all; the nodes that fit best are used, the others are spares.",
        parsing.parse_world_size,
        metavar="N|MIN:MAX",
    ),
    "--connect-timeout-s": Flag(
        f"Seconds to wait for a server's first answer (default: {CONNECT_TIMEOUT_S:g}).",
        parsing.parse_seconds,
        CONNECT_TIMEOUT_S,
        metavar="S",
    ),
    "--check": make_switch(
        "Join nothing: check devices, versions, servers, the address to offer and the way to the other nodes."
    ),
    "--node-check": Flag(
        "This node is ready only while this /bin/sh command exits with 0 (or HET_NODE_CHECK).",
        variable="HET_NODE_CHECK",
        metavar="COMMAND",
    ),
    "--ready-file": Flag(
        "A file that exists while the server knows this node, in a round or not: for readiness probes.",
        parse_absolute,
        metavar="FILE",
    ),
    "--watch": Flag(
        "Leave, once all workers could save, when the cloud announces the preemption of this machine (or "
        "HET_WATCH). spot: AWS, Google Cloud or Azure.",
        variable="HET_WATCH",
        choices=(SPOT,),
    ),
    "--leave-when": Flag(
        "Leave like that when this file appears, or this /bin/sh command exits with 0 (or HET_LEAVE_WHEN).",
        variable="HET_LEAVE_WHEN",
        metavar="FILE|COMMAND",
    ),
    "--collapse": make_switch(
        "Show identical lines of several ranks of this node as one, with all their ranks in front; "
        "without -t and -r as -t 3."
    ),
    "--preload": Flag(
        "What standby processes import ahead of a restart (or HET_PRELOAD); auto, the default: torch, and "
        "what the script imports; none: no standbys.",
        parse_modules,
        (AUTO,),
        "HET_PRELOAD",
        metavar="MODULE[,MODULE...]",
    ),
    "--snapshot-dir": Flag(
        f"Where snapshots are kept (hetagent.snapshots): a tmpfs (or HET_SNAPSHOT_DIR; default: {SHM}).",
        parse_absolute,
        variable="HET_SNAPSHOT_DIR",
        metavar="DIR",
    ),
    "--snapshot-memory": Flag(
        "Most memory that the snapshots of this node may take, such as 64G (or HET_SNAPSHOT_MEMORY; default: half of "
        "what is free there); off or 0: no snapshots.",
        parse_size,
        variable="HET_SNAPSHOT_MEMORY",
        metavar="SIZE|off",
    ),
    "--snapshot-every-s": Flag(
        f"Longest time between snapshots (or HET_SNAPSHOT_EVERY_S; default: {EVERY_S:.0f}).",
        parse_positive,
        int(EVERY_S),
        "HET_SNAPSHOT_EVERY_S",
        metavar="SECONDS",
    ),
    "--snapshot-to": Flag(
        "Also write snapshots to a directory that all nodes share, as checkpoints of "
        "torch.distributed.checkpoint: DIR/GROUP/step-... (or HET_SNAPSHOT_TO; default: no).",
        parse_directory,
        variable="HET_SNAPSHOT_TO",
        metavar="DIR",
    ),
    "--snapshot-to-every-s": Flag(
        f"Time between those written there (or HET_SNAPSHOT_TO_EVERY_S; default: {TO_EVERY_S}).",
        parse_positive,
        TO_EVERY_S,
        "HET_SNAPSHOT_TO_EVERY_S",
        metavar="SECONDS",
    ),
    "--snapshot-keep": Flag(
        f"How many to keep there (or HET_SNAPSHOT_KEEP; default: {KEEP}).",
        parse_positive,
        KEEP,
        "HET_SNAPSHOT_KEEP",
        metavar="N",
    ),
}
"""The flags of a node that torchrun does not have."""

OF_JOB: Mapping[str, Flag] = {
    f"--{name.replace('_', '-')}": Flag(
        f"{setting.help.removesuffix('.')} (default: {setting_text(setting.default)}).",
        setting.read,
        choices=setting.choices or None,
        metavar=None if setting.choices else setting.metavar,
    )
    for name, setting in SPEC_FLAGS.items()
}

FLAGS: Mapping[str, Flag] = {**ACCEPTED, **OF_NODE, **OF_JOB}

SEE_HELP = "; see hetagent --help"


class Parser(ArgumentParser):
    """hetagent's parser; abbreviations are off, or a script's own --log would be taken for one of ours."""

    def __init__(self) -> None:
        super().__init__(
            prog="hetagent", usage=usage.USAGE, description=usage.ABOUT, allow_abbrev=False, add_help=False
        )
        self.add_argument("-h", "--help", action=usage.ShortHelp, help="Show the flags of the first day.")
        self.add_argument("--help-all", action="help", help="Show all flags.")
        self.add_argument("--version", action="version", version=f"hetagent {__version__}")
        for flag in REFUSED:
            self.add_argument(*spellings(flag), help=SUPPRESS)
        parts = {
            "torchrun's flags, with - or _": ACCEPTED,
            "of this node": OF_NODE,
            "of the whole job": OF_JOB,
        }
        for title, flags in parts.items():
            part = self.add_argument_group(title)
            for flag, row in flags.items():
                _add_flag(part, flag, row)
        self.add_argument(
            "training_script",
            nargs="?",
            help="The training script and its arguments; without one the group's command is used.",
        )
        self.add_argument("training_script_args", nargs=REMAINDER)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong, without the usage line above it.

        Raises:
            UsageError: always.
        """
        named = re.fullmatch(r"argument (?:-\w/)?(-[^\s:]+): (.*)", message, re.DOTALL)
        if named is None:
            raise UsageError(message + SEE_HELP)
        flag, text = named.groups()
        if text == "expected one argument":
            raise UsageError(f"{flag} needs a value{SEE_HELP}")
        raise UsageError(f"{flag}: {text}")


def parse_flags(argv: Sequence[str], environ: Mapping[str, str]) -> Namespace:
    """What the flags say; `given` are the names of those that were typed. Others have what their variable says.

    Raises:
        UsageError: there is no such flag, or a value cannot be read.
    """
    args = Parser().parse_args(argv)
    args.given = frozenset(name for name, value in vars(args).items() if value is not None)
    for flag, row in FLAGS.items():
        if dest(flag) not in args.given:
            names = [variable(flag)] if flag in ACCEPTED and flag not in WITHOUT_VARIABLE else []
            names += [row.variable] if flag != "--server" or not args.standalone else []
            name = next((name for name in names if environ.get(name)), None)
            value = row.default if name is None else _read_variable(name, row, environ[name])
            setattr(args, dest(flag), value)
    return args


def _add_flag(to: _ArgumentGroup, flag: str, row: Flag) -> None:
    """Add a flag in all its spellings; `--help-all` shows those with dashes."""
    settings: dict[str, Any] = {"action": "store_true", "default": None}
    if row.read is not parse_switch:
        settings = {
            "action": "append" if row.repeats else "store",
            "type": _make_argument_type(row.read),
            "metavar": row.metavar,
            "choices": row.choices,
        }
    shown = [spelling for spelling in spellings(flag) if "_" not in spelling]
    to.add_argument(*shown, help=row.help, **settings)
    if flag in ACCEPTED and dest(flag) != flag[2:]:
        to.add_argument(f"--{dest(flag)}", help=SUPPRESS, **settings)


def _make_argument_type(reads: Callable[[str], Any]) -> Callable[[str], Any]:
    """A reader of texts as argparse takes it: its errors are shown as they are."""

    def read(text: str) -> Any:
        try:
            return reads(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return read


def _read_variable(name: str, row: Flag, text: str) -> object:
    try:
        if row.choices and text not in row.choices:
            raise ValueError(f"give {' or '.join(row.choices)}")
        return row.read(text)
    except ValueError as error:
        shown = name if "@" in text else f"{name}={text}"  # a password
        raise UsageError(f"{shown}: {error}") from None
