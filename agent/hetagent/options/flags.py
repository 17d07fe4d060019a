"""hetagent's flags: torchrun's own parser, with our flags added and those that cannot apply refused."""

import os
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed.run import get_args_parser

from hetagent.launch.kinds import DEFAULT_LAUNCH, LAUNCHES
from hetagent.options.model import UsageError
from hetagent.options.values import label, port_range, seconds, setting
from hetagent.protocol.contact import CONNECT_TIMEOUT_S
from hetrdzv import __version__
from hetrdzv.protocol.wire import DEFAULTS, SETTINGS, Setting

REFUSED: Mapping[str, str] = {
    "--master-addr": "the server chooses the master of every round",
    "--master-port": "the master's agent holds a free port; limit the choice with --port-range",
    "--node-rank": "the server assigns the ranks",
    "--rdzv-backend": "hetagent always uses hetserver: give --server URL (torchrun itself takes hetrdzv there)",
    "--rdzv-endpoint": "give --server URL",
    "--rdzv-conf": "the settings of a group are flags of their own, such as --last-call-s",
    "--start-method": "workers are always started as separate programs",
}
"""torchrun's flags that cannot apply, each with the reason.

Their PET_ variables are ignored, not refused: what starts containers for torchrun sets them for all of them.
"""

OWN_HELP: Mapping[str, str] = {
    "nnodes": "Number of nodes, N or MIN:MAX (default: Slurm's, or whoever has joined by the last call).",
    "nproc_per_node": "torchrun's spelling of --gpus: a number of workers of any kind, or gpu, cpu, xpu, auto.",
    "run_path": "Accepted without effect: scripts always run this way. Overrides --no-python.",
    "rdzv_id": "torchrun's name for --group.",
    "standalone": "Start a private hetserver, for a job on this node only.",
    "max_restarts": f"How many failures may restart the group (default: {DEFAULTS.max_restarts}).",
    "monitor_interval": "Accepted without effect: the exit of a worker is noticed at once.",
    "local_addr": "The address this node offers (default: that of its connection to the server).",
    "shutdown_timeout": "Seconds between SIGTERM and SIGKILL on this node (default: --stop-timeout-s).",
}
"""Help for torchrun's flags where torchrun's own text would mislead."""

SPEC_FLAGS: Mapping[str, Setting] = {name: one for name, one in SETTINGS.items() if one.has_flag}
"""Settings of the group with a flag of their own name; --nnodes and --max-restarts are torchrun's."""

TORCHRUNS_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""torchrun's default for --signals-to-handle."""

OUR_FLAGS: Mapping[str, Mapping[str, Any]] = {
    "--gpus": {
        "metavar": "N|auto|LIST",
        "help": "How many GPUs, all of them, or which ones: 4, auto, 0,2,3 (default: Slurm's, or all).",
    },
    "--device": {
        "choices": ("auto", "cuda", "cpu"),
        "default": "auto",
        "help": "auto, cuda: GPUs (default); cpu: start N CPU workers.",
    },
    "--init-file": {
        "type": Path,
        "metavar": "DIR",
        "help": "With --launch node: {init_method} names a new file in this shared directory each round.",
    },
    "--isolate-gpus": {
        "action": "store_true",
        "help": "Each worker sees only its own GPU; LOCAL_RANK stays as it is.",
    },
    "--preload": {
        "metavar": "MODULE[,MODULE...]",
        "help": "What standby processes import ahead of a restart (or HET_PRELOAD; default torch); auto: what the "
        "script imports; none: no standbys.",
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
        "type": port_range,
        "metavar": "A-B",
        "help": "The ports this node may offer (for firewalls).",
    },
    "--label": {
        "action": "append",
        "type": label,
        "metavar": "KEY=VALUE",
        "help": "A label for this node; repeatable.",
    },
    "--connect-timeout-s": {
        "type": seconds,
        "default": CONNECT_TIMEOUT_S,
        "metavar": "S",
        "help": f"Seconds to wait for a server's first answer (default: {CONNECT_TIMEOUT_S:g}).",
    },
}
"""The flags that torchrun does not have, with the arguments of `add_argument`; --launch beside them."""

_TORCHRUN_DEFAULTS_KEPT = frozenset(
    {
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
)


def parser() -> ArgumentParser:
    """torchrun's parser with our flags; an argument that was not given is None, except where torchrun's default stays.

    Raises:
        UsageError: the PET_ variable of a switch is not 0 or 1.
    """
    try:
        made = get_args_parser()
    except ValueError as error:
        raise UsageError(
            f"a PET_ variable that switches something on or off must be 0 or 1: {error}"
        ) from None
    made.allow_abbrev = False  # or a script's own --log would be taken for one of ours
    made.prog = "hetagent"
    made.usage = "hetagent [--gpus N] (--server URL | --standalone) [flags] [script [its arguments]]"
    made.description = (
        "Start this node's workers for a job whose ranks a hetserver assigns. torchrun's flags apply."
    )
    refused = {dest(flag) for flag in REFUSED}
    for action in made._actions:
        if action.dest == "training_script":
            action.nargs, action.required, action.default = "?", False, None
            action.help = "The training script and its arguments; without one the group's command is used."
        elif action.dest in refused:
            action.default, action.help = None, SUPPRESS
        elif f"PET_{action.dest.upper()}" not in os.environ and action.dest not in _TORCHRUN_DEFAULTS_KEPT:
            action.default = None
        action.help = OWN_HELP.get(action.dest, action.help)
    ours = made.add_argument_group("hetrdzv")
    styles = "; ".join(f"{name}: {kind.help}" for name, kind in LAUNCHES.items())
    ours.add_argument(
        "--launch", choices=LAUNCHES, default=DEFAULT_LAUNCH, help=f"How to start workers: {styles}."
    )
    for flag, settings in OUR_FLAGS.items():
        ours.add_argument(flag, **settings)
    for name, one in SPEC_FLAGS.items():
        ours.add_argument(
            f"--{name.replace('_', '-')}",
            dest=name,
            type=partial(setting, one),
            choices=one.choices or None,
            help=f"{one.help} (default: {one.shown_default})",
            metavar=None if one.choices else "S",
        )
    ours.add_argument("--version", action="version", version=f"hetagent {__version__}")
    return made


def dest(flag: str) -> str:
    """Where argparse keeps a flag's value: `node_id` for `--node-id`."""
    return flag[2:].replace("-", "_")
