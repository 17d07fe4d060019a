"""torchrun's flags as a table, so that a command line is read without importing torch.

tests/agent/options/test_torchrun.py compares it with the parser of the torch that is installed.
"""

import os
import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hetagent.options.values import (
    parse_filters,
    parse_nonempty,
    parse_ranks,
    parse_signals,
    parse_streams,
    parse_switch,
)
from hetrdzv.protocol.settings import DEFAULT_SPEC, SETTINGS
from hetrdzv.protocol.texts.ids import check_id
from hetrdzv.protocol.texts.parsing import parse_nodes, parse_seconds

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""torchrun's default for --signals-to-handle."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of hetagent.

    Attributes:
        help: what `--help-all` says.
        read: turns its text into a value; `parse_switch`: it takes none.
        default: its value where neither it nor its variable is given.
        variable: its variable in the environment; torchrun's flags have `PET_` and their name in capitals, too.
        short: its one-letter spelling.
        choices: the values it takes; None: any.
        repeats: it may be given several times.
    """

    help: str
    read: Callable[[str], Any] = str
    default: object = None
    variable: str = ""
    short: str = ""
    metavar: str | None = None
    choices: Collection[str] | None = None
    repeats: bool = False


def make_switch(text: str, **row: Any) -> Flag:
    """A flag that takes no value."""
    return Flag(text, parse_switch, False, **row)


ACCEPTED: Mapping[str, Flag] = {
    "--nnodes": Flag(
        "Number of nodes, N or MIN:MAX (default: Slurm's, or whoever has joined by the last call).",
        parse_nodes,
    ),
    "--nproc-per-node": Flag(
        "torchrun's spelling of --gpus: a number of workers of any kind, or gpu, cpu, xpu, auto."
    ),
    "--rdzv-id": Flag("torchrun's name for --group.", check_id),
    "--standalone": make_switch("Start a private hetserver, for a job on this node only."),
    "--max-restarts": Flag(
        f"How many failures may restart the group (default: {DEFAULT_SPEC.max_restarts}).",
        SETTINGS["max_restarts"].read,
    ),
    "--monitor-interval": Flag("Accepted without effect: the exit of a worker is noticed at once.", float),
    "--role": Flag("A name for what the workers do (default: default).", check_id, "default"),
    "--module": make_switch("The script is the name of a module, as with python -m.", short="-m"),
    "--no-python": make_switch("The script is a program of any kind: start it directly."),
    "--run-path": make_switch("Accepted without effect: scripts always run this way. Overrides --no-python."),
    "--log-dir": Flag(
        "Keep the workers' log files in this directory (default: remove them).", parse_nonempty
    ),
    "--redirects": Flag(
        "Write these streams to log files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both, or by "
        "local rank 0:1,1:3.",
        parse_streams,
        0,
        short="-r",
    ),
    "--tee": Flag(
        "Write these streams to log files and the console, as for --redirects.", parse_streams, 0, short="-t"
    ),
    "--log-line-prefix-template": Flag(
        "What lines of --tee begin with on the console; ${node_id}, ${rank}, ${local_rank}, ${role_name} and "
        "${hostname} are filled in (default: '[${node_id}:${rank}] ')."
    ),
    "--local-ranks-filter": Flag(
        "Show only these local ranks on the console: 0,1,2 (default: all).", parse_ranks
    ),
    "--duplicate-stdout-filters": Flag(
        "Copy the lines of stdout that contain one of these texts to one more file in --log-dir; "
        "two commas stand for one within a text.",
        parse_filters,
        (),
    ),
    "--duplicate-stderr-filters": Flag("The same for stderr.", parse_filters, ()),
    "--local-addr": Flag("The address this node offers (default: that of its connection to the server)."),
    "--logs-specs": Flag("The entry point in the group torchrun.logs_specs that decides where logs go."),
    "--numa-binding": Flag(
        "Bind each worker to CPUs near its GPU: those of the NUMA node or socket, an exclusive share of the "
        "node, or one core complex.",
        choices=("node", "socket", "exclusive", "core-complex"),
    ),
    "--signals-to-handle": Flag(
        "The signals on which this agent stops its workers and leaves (default: "
        f"{','.join(signum.name for signum in SIGNALS)}).",
        parse_signals,
    ),
    "--shutdown-timeout": Flag(
        "Seconds between SIGTERM and SIGKILL on this node (default: --stop-timeout-s).",
        parse_seconds,
        variable="TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    ),
    "--virtual-local-rank": make_switch("Each worker sees only its own GPU, and its LOCAL_RANK is 0."),
}
"""torchrun's flags that apply, in its order."""

WITHOUT_VARIABLE = frozenset({"--logs-specs", "--numa-binding"})
"""Those that torchrun takes from the command line only."""

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
    short = ACCEPTED[flag].short if flag in ACCEPTED else ""
    return tuple(dict.fromkeys(filter(None, (short, flag, f"--{dest(flag)}"))))


def variable(flag: str) -> str:
    """The environment variable of a flag's default: `PET_NNODES` for `--nnodes`."""
    return f"PET_{dest(flag).upper()}"


def format_flag(flag: str, value: str) -> str:
    """A flag with its value as it was typed, or the variable that has it."""
    named = variable(flag)
    return f"{named}={value}" if os.environ.get(named) == value else f"{flag} {value}"
