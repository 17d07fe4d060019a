"""torchrun's flags as a table, so that a command line is read without importing torch.

tests/agent/options/test_torchrun.py compares it with the parser of the torch that is installed.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hetagent.options.values import argument, filters
from hetrdzv.protocol.settings import DEFAULTS, SETTINGS
from hetrdzv.protocol.texts.typed import seconds

TORCHRUNS_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""torchrun's default for --signals-to-handle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunFlag:
    """A flag of torchrun that applies to hetagent.

    Attributes:
        help: what `--help` says.
        short: its one-letter spelling.
        switch: it takes no value.
        type: turns its text into a value.
        default: torchrun's default; None where hetagent has one of its own and needs to know what was given.
        choices: the values it takes; None: any.
        variable: its default can be set in the environment, as `PET_` and its name in capitals.
    """

    help: str
    short: str | None = None
    switch: bool = False
    type: Callable[[str], Any] = str
    default: object = None
    choices: tuple[str, ...] | None = None
    variable: bool = True


ACCEPTED: Mapping[str, TorchrunFlag] = {
    "--nnodes": TorchrunFlag(
        help="Number of nodes, N or MIN:MAX (default: Slurm's, or whoever has joined by the last call).",
    ),
    "--nproc-per-node": TorchrunFlag(
        help="torchrun's spelling of --gpus: a number of workers of any kind, or gpu, cpu, xpu, auto.",
    ),
    "--rdzv-id": TorchrunFlag(help="torchrun's name for --group."),
    "--standalone": TorchrunFlag(
        switch=True, help="Start a private hetserver, for a job on this node only."
    ),
    "--max-restarts": TorchrunFlag(
        type=argument(SETTINGS["max_restarts"].read),
        help=f"How many failures may restart the group (default: {DEFAULTS.max_restarts})."
    ),
    "--monitor-interval": TorchrunFlag(
        type=float, help="Accepted without effect: the exit of a worker is noticed at once."
    ),
    "--role": TorchrunFlag(default="default", help="A name for what the workers do (default: default)."),
    "--module": TorchrunFlag(
        short="-m", switch=True, help="The script is the name of a module, as with python -m."
    ),
    "--no-python": TorchrunFlag(switch=True, help="The script is a program of any kind: start it directly."),
    "--run-path": TorchrunFlag(
        switch=True, help="Accepted without effect: scripts always run this way. Overrides --no-python."
    ),
    "--log-dir": TorchrunFlag(help="Keep the workers' log files in this directory (default: remove them)."),
    "--redirects": TorchrunFlag(
        short="-r",
        default="0",
        help="Write these streams to log files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both, or by "
        "local rank 0:1,1:3.",
    ),
    "--tee": TorchrunFlag(
        short="-t", default="0", help="Write these streams to log files and the console, as for --redirects."
    ),
    "--log-line-prefix-template": TorchrunFlag(
        help="What lines of --tee begin with on the console; ${node_id}, ${rank}, ${local_rank}, ${role_name} and "
        "${hostname} are filled in (default: '[${node_id}:${rank}] ').",
    ),
    "--local-ranks-filter": TorchrunFlag(
        default="", help="Show only these local ranks on the console: 0,1,2 (default: all)."
    ),
    "--duplicate-stdout-filters": TorchrunFlag(
        type=filters,
        default=(),
        help="Copy the lines of stdout that contain one of these texts to one more file in --log-dir; "
        "two commas stand for one within a text.",
    ),
    "--duplicate-stderr-filters": TorchrunFlag(
        type=filters, default=(), help="The same for stderr."
    ),
    "--local-addr": TorchrunFlag(
        help="The address this node offers (default: that of its connection to the server)."
    ),
    "--logs-specs": TorchrunFlag(
        variable=False, help="The entry point in the group torchrun.logs_specs that decides where logs go."
    ),
    "--numa-binding": TorchrunFlag(
        choices=("node", "socket", "exclusive", "core-complex"),
        variable=False,
        help="Bind each worker to CPUs near its GPU: those of the NUMA node or socket, an exclusive share of the "
        "node, or one core complex.",
    ),
    "--signals-to-handle": TorchrunFlag(
        default=TORCHRUNS_SIGNALS,
        help=f"The signals on which this agent stops its workers and leaves (default: {TORCHRUNS_SIGNALS}).",
    ),
    "--shutdown-timeout": TorchrunFlag(
        type=argument(seconds), help="Seconds between SIGTERM and SIGKILL on this node (default: --stop-timeout-s)."
    ),
    "--virtual-local-rank": TorchrunFlag(
        switch=True, help="Each worker sees only its own GPU, and its LOCAL_RANK is 0."
    ),
}  # fmt: skip
"""torchrun's flags that apply, in its order."""

REFUSED: Mapping[str, str] = {
    "--master-addr": "the server chooses the master of every round",
    "--master-port": "the master's agent holds a free port; limit the choice with --port-range",
    "--node-rank": "the server assigns the ranks",
    "--rdzv-backend": "hetagent always uses hetserver: give --server URL (torchrun itself takes hetrdzv there)",
    "--rdzv-endpoint": "give --server URL",
    "--rdzv-conf": "the settings of a group are flags of their own, such as --last-call-s",
    "--event-log-handler": "torch's events are not recorded; hetctl events GROUP shows those of the job",
    "--print-completion": "it completes torchrun's flags: use torchrun --print-completion",
    "--start-method": "workers are always started as separate programs",
}
"""torchrun's flags that cannot apply, each with the reason.

Their PET_ variables are ignored, not refused: what starts containers for torchrun sets them for all of them.
"""


def dest(flag: str) -> str:
    """Where argparse keeps a flag's value: `node_id` for `--node-id`."""
    return flag[2:].replace("-", "_")


def spellings(flag: str) -> tuple[str, ...]:
    """A flag of torchrun as it may be typed: with dashes, with underscores, and the short form if there is one."""
    short = ACCEPTED[flag].short if flag in ACCEPTED else None
    known = (short, flag, f"--{dest(flag)}")
    return tuple(dict.fromkeys(spelling for spelling in known if spelling is not None))


def variable(flag: str) -> str:
    """The environment variable of a flag's default: `PET_NNODES` for `--nnodes`."""
    return f"PET_{dest(flag).upper()}"


def source(flag: str, value: str) -> str:
    """Where a value of a flag comes from: the command line, or the flag's variable."""
    return variable(flag) if os.environ.get(variable(flag)) == value else flag


def typed(flag: str, value: str) -> str:
    """A flag with its value as it was typed."""
    where = source(flag, value)
    return f"{where} {value}" if where == flag else f"{where}={value}"
