"""hetagent's flags: torchrun's and ours. Nothing here imports torch."""

import os
import re
from argparse import REMAINDER, SUPPRESS, ArgumentParser, ArgumentTypeError, _ArgumentGroup
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from hetagent.cli import usage
from hetagent.errors import UsageError
from hetagent.launch.kinds import DEFAULT_LAUNCH, LAUNCHES, OWN_FLAGS
from hetagent.node.network import parse_port_range
from hetagent.options.parts import KEEP, SHM, TO_EVERY_S
from hetagent.options.torchrun import ACCEPTED, REFUSED, TorchrunFlag, spellings, variable
from hetagent.options.values import GRACE_S, ON_OFF, Flags, argument, grace, notice_signal
from hetagent.session.backoff import CONNECT_TIMEOUT_S
from hetagent.snapshots.folder import EVERY_S
from hetrdzv import __version__
from hetrdzv.protocol.settings import SETTINGS, Setting
from hetrdzv.protocol.texts import typed

SPEC_FLAGS: Mapping[str, Setting] = {name: setting for name, setting in SETTINGS.items() if setting.help}
"""Settings of the group with a flag of their own name; --nnodes and --max-restarts are torchrun's."""

OUR_FLAGS: Flags = {
    "--gpus": {
        "metavar": "N|auto|LIST",
        "help": "How many GPUs, all of them, or which ones: 4, auto, 0,2,3 (default: Slurm's, or all).",
    },
    "--device": {
        "choices": ("auto", "cuda", "cpu"),
        "default": "auto",
        "help": "auto, cuda: GPUs (default); cpu: start N CPU workers.",
    },
    "--report-output": {
        "choices": ON_OFF,
        "help": "Report the end of what workers write, and their stacks, to the server (or HET_REPORT_OUTPUT; default "
        "on).",
    },
    "--notice-signal": {
        "type": argument(notice_signal),
        "metavar": "SIGUSR1",
        "help": "What workers that handle it get when their round is about to end.",
    },
    "--grace-s": {
        "type": argument(grace),
        "metavar": "S",
        "help": "Seconds from SIGTERM until this node is killed, in which workers that ask for it may save "
        f"(or HET_GRACE_S; default: {GRACE_S:g}; 0: they are stopped at once).",
    },
    "--exit-codes": {
        "choices": ("worker", "agent"),
        "default": "worker",
        "help": "If a worker's code fails the job, exit with it (worker, default), or always with 1 (agent).",
    },
    "--require-rendezvous": {
        "action": "store_true",
        "help": "Fail a job whose workers end well but never met (init_process_group); give it on every node.",
    },
    "--server": {"metavar": "URL[,URL...]", "help": "The hetserver to use (or HET_SERVER)."},
    "--group": {
        "metavar": "ID",
        "help": "The job to join (or HET_GROUP, --rdzv-id; default: Slurm's, or 'default'; --standalone: a new one).",
    },
    "--node-id": {
        "metavar": "ID",
        "help": "This node's stable name (default: Slurm's, or the host name; HOST.2 for a second agent here).",
    },
    "--token-file": {
        "type": Path,
        "metavar": "FILE",
        "help": "File with a token for the server (or HET_TOKEN).",
    },
    "--ca-cert": {
        "type": Path,
        "metavar": "FILE",
        "help": "CA that signed the server's certificate, PEM (or HET_CA_CERT).",
    },
    "--client-cert": {
        "type": Path,
        "metavar": "FILE",
        "help": "Certificate to present to the server, PEM (or HET_CLIENT_CERT).",
    },
    "--client-key": {
        "type": Path,
        "metavar": "FILE",
        "help": "Private key of --client-cert, PEM (or HET_CLIENT_KEY).",
    },
    "--interface": {"metavar": "NAME", "help": "The network interface whose address this node offers."},
    "--port-range": {
        "type": argument(parse_port_range),
        "metavar": "A-B",
        "help": "The ports this node may offer (for firewalls).",
    },
    "--label": {
        "action": "append",
        "type": argument(typed.label),
        "metavar": "KEY=VALUE",
        "help": "A label for this node; repeatable.",
    },
    "--weight": {
        "type": argument(typed.weight),
        "metavar": "X",
        "help": "How fast each worker here is, compared with those of other nodes: for shares, which otherwise "
        "follow the time that workers need (default, if any node has one: 1).",
    },
    "--world-size": {
        "type": argument(typed.world_size),
        "metavar": "N|MIN:MAX",
        "help": "How many workers the job may have in all; the nodes that fit best are used, the others are spares.",
    },
    "--connect-timeout-s": {
        "type": argument(typed.seconds),
        "default": CONNECT_TIMEOUT_S,
        "metavar": "S",
        "help": f"Seconds to wait for a server's first answer (default: {CONNECT_TIMEOUT_S:g}).",
    },
    "--check": {
        "action": "store_true",
        "help": "Join nothing: check devices, versions, servers, the address to offer and the way to the other nodes.",
    },
    "--node-check": {
        "metavar": "COMMAND",
        "help": "This node is ready only while this /bin/sh command exits with 0 (or HET_NODE_CHECK).",
    },
    "--ready-file": {
        "metavar": "FILE",
        "help": "A file that is there while the server has this node, in a round or not: for readiness probes.",
    },
    "--watch": {
        "metavar": "WHAT",
        "help": "Leave, once all workers could save, when the cloud announces that it takes this machine away (or "
        "HET_WATCH). spot: AWS, Google Cloud or Azure.",
    },
    "--leave-when": {
        "metavar": "FILE|COMMAND",
        "help": "The same when this file appears, or this /bin/sh command exits with 0 (or HET_LEAVE_WHEN).",
    },
    "--collapse": {
        "action": "store_true",
        "help": "Show identical lines of several ranks of this node as one, with all their ranks in front; "
        "without -t and -r as -t 3.",
    },
    "--preload": {
        "metavar": "MODULE[,MODULE...]",
        "help": "What standby processes import ahead of a restart (or HET_PRELOAD); auto, the default: torch, and "
        "what the script imports; none: no standbys.",
    },
    "--snapshot-dir": {
        "metavar": "DIR",
        "help": f"Where snapshots are kept (hetagent.snapshots): a tmpfs (or HET_SNAPSHOT_DIR; default: {SHM}).",
    },
    "--snapshot-memory": {
        "metavar": "SIZE|off",
        "help": "What all snapshots of this node may take, such as 64G (or HET_SNAPSHOT_MEMORY; default: half of "
        "what is free there); off or 0: no snapshots.",
    },
    "--snapshot-every-s": {
        "metavar": "SECONDS",
        "help": f"How far apart they are at most (or HET_SNAPSHOT_EVERY_S; default: {EVERY_S:.0f}).",
    },
    "--snapshot-to": {
        "metavar": "DIR|URL",
        "help": "Also write snapshots to a directory that all nodes share, or an object store, as checkpoints of "
        "torch.distributed.checkpoint: DIR/GROUP/step-... (or HET_SNAPSHOT_TO; default: no).",
    },
    "--snapshot-to-every-s": {
        "metavar": "SECONDS",
        "help": f"How often to write one (or HET_SNAPSHOT_TO_EVERY_S; default: {TO_EVERY_S}).",
    },
    "--snapshot-keep": {
        "metavar": "N",
        "help": f"How many to keep there (or HET_SNAPSHOT_KEEP; default: {KEEP}).",
    },
}
"""The flags that torchrun does not have; --launch beside them, and those of launch styles."""

SEE_HELP = "; see hetagent --help"


class Parser(ArgumentParser):
    """hetagent's parser; abbreviations are off, or a script's own --log would be taken for one of ours."""

    def __init__(self) -> None:
        super().__init__(
            prog="hetagent", usage=usage.USAGE, description=usage.ABOUT, allow_abbrev=False, add_help=False
        )
        self.add_argument("-h", "--help", action=usage.Short, help="Show the flags of the first day.")
        self.add_argument("--help-all", action="help", help="Show all flags.")
        self.add_argument("--version", action="version", version=f"hetagent {__version__}")

    def flags(self) -> list[str]:
        """All flags that apply, in their long spellings with dashes."""
        shown = [action for action in self._actions if action.help != SUPPRESS]
        return [flag for action in shown for flag in action.option_strings if flag.startswith("--")]

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong, without the usage line above it.

        Raises:
            UsageError: always.
        """
        named = re.fullmatch(r"argument (-[^\s/:]+)(?:/[^\s:]+)*: (.*)", message, re.DOTALL)
        if named is None:
            raise UsageError(message + SEE_HELP)
        flag, text = named.groups()
        if text == "expected one argument":
            raise UsageError(f"{flag} needs a value{SEE_HELP}")
        raise UsageError(f"{flag}: {text}")


def parser() -> Parser:
    """A parser of torchrun's flags and ours; an argument that was not given is None, or has torchrun's default.

    Raises:
        UsageError: the PET_ variable of a switch is not a number.
    """
    made = Parser()
    torchruns = made.add_argument_group("torchrun's flags, with - or _")
    for flag, row in ACCEPTED.items():
        _add(torchruns, flag, row)
    for flag in REFUSED:
        made.add_argument(*spellings(flag), help=SUPPRESS)
    ours = made.add_argument_group("of this node")
    styles = "; ".join(f"{name}: {kind.help}" for name, kind in LAUNCHES.items())
    ours.add_argument(
        "--launch", choices=LAUNCHES, default=DEFAULT_LAUNCH, help=f"How to start workers: {styles}."
    )
    for flag, settings in {**OUR_FLAGS, **OWN_FLAGS}.items():
        ours.add_argument(flag, **settings)
    groups = made.add_argument_group("of the whole job")
    for name, setting in SPEC_FLAGS.items():
        groups.add_argument(
            f"--{name.replace('_', '-')}",
            dest=name,
            type=argument(setting.read),
            choices=setting.choices or None,
            help=f"{setting.help.removesuffix('.')} (default: {setting.shown_default}).",
            metavar=None if setting.choices else setting.metavar,
        )
    made.add_argument(
        "training_script",
        nargs="?",
        help="The training script and its arguments; without one the group's command is used.",
    )
    made.add_argument("training_script_args", nargs=REMAINDER)
    return made


def _add(to: _ArgumentGroup, flag: str, row: TorchrunFlag) -> None:
    given = os.environ.get(variable(flag)) if row.variable else None
    if not row.switch:
        default = row.default if given is None else _from_variable(flag, row, given)
        _add_spellings(to, flag, row, type=row.type, choices=row.choices, default=default)
        return
    try:
        on = None if given is None else bool(int(given))
    except ValueError:
        raise UsageError(f"{variable(flag)} must be 0 or 1, which {given!r} is not") from None
    _add_spellings(to, flag, row, action="store_true", default=on)


def _add_spellings(to: _ArgumentGroup, flag: str, row: TorchrunFlag, **settings: Any) -> None:
    """Add a flag in all its spellings; `--help` shows those with dashes."""
    hidden = [spelling for spelling in spellings(flag) if "_" in spelling]
    to.add_argument(*(shown for shown in spellings(flag) if shown not in hidden), help=row.help, **settings)
    for spelling in hidden:
        to.add_argument(spelling, help=SUPPRESS, **settings)


def _from_variable(flag: str, row: TorchrunFlag, given: str) -> object:
    try:
        return row.type(given)
    except (ArgumentTypeError, ValueError) as error:
        raise UsageError(f"{variable(flag)}={given}: {error}") from None
