"""What `--help` shows, on one screen, and the parts of `--help-all`."""

from argparse import Action, ArgumentParser, HelpFormatter, Namespace
from collections.abc import Mapping, Sequence
from typing import Any, cast

USAGE = "hetagent [flags] [script [its arguments]]"

ABOUT = "Start this node's workers for a job whose ranks a hetserver assigns."

EXAMPLES = """\
On this machine only, with all its GPUs, or with two CPU workers:
  hetagent --standalone train.py
  hetagent --standalone --device cpu --gpus 2 train.py
The same on each of three nodes, once hetserver runs on head:
  hetagent --server http://head:29400 --token-file token --group bert \\
           --nnodes 3 train.py --lr 0.1"""

MORE = "All flags: hetagent --help-all. Those of torchrun apply, with - or _."

FIRST: Mapping[str, Mapping[str, str]] = {
    "where": {
        "--server URL[,URL...]": "the hetserver (or HET_SERVER)",
        "--token-file FILE": "a file with its token (or HET_TOKEN)",
        "--standalone": "a private server, for this machine only",
        "--check": "join nothing; check devices, server and network",
    },
    "this node": {
        "--gpus N|auto|LIST": "how many GPUs, or which ones (default: all)",
        "--device auto|cuda|cpu": "cpu: start N CPU workers",
        "-m": "the script is a module, as with python -m",
    },
    "the job": {
        "--group ID": "its name, the same on all its nodes",
        "--nnodes N|MIN:MAX": "how many nodes it waits for",
        "--max-restarts N": "how many failures may restart it (default: 3)",
        "--hang-timeout-s S": "end a round that hangs for so long (default: never)",
        "--snapshot-to DIR": "write its snapshots to this shared directory",
    },
    "output": {
        "--log-dir DIR": "keep the workers' log files here",
        "--tee 3": "show their lines with node and rank in front",
    },
}
"""The flags of the first day, each with its value and what it does in half a line."""

PARTS: Mapping[str, Sequence[str]] = {
    "job": (
        "--group", "--rdzv-id", "--nnodes", "--world-size", "--world-size-multiple", "--standalone", "--launch",
        "--module", "--no-python", "--init-file", "--on-join", "--growth-pause-s", "--last-call-s", "--replace-wait-s",
        "--join-timeout-s", "--rank-order", "--master", "--unit",
    ),
    "node": (
        "--gpus", "--nproc-per-node", "--device", "--node-id", "--role", "--label", "--weight", "--isolate-gpus",
        "--virtual-local-rank", "--numa-binding", "--check", "--node-check", "--ready-file", "--watch", "--leave-when",
        "--grace-s",
    ),
    "network": (
        "--server", "--token-file", "--ca-cert", "--client-cert", "--client-key", "--connect-timeout-s",
        "--local-addr", "--interface", "--port-range", "--lease-s", "--max-disconnect-s",
    ),
    "failure": (
        "--max-restarts", "--hang-timeout-s", "--no-restart-on", "--restart-wait-s",
        "--require-rendezvous", "--stop-timeout-s", "--shutdown-timeout", "--notice-s", "--notice-signal",
        "--preload", "--snapshot-to", "--snapshot-to-every-s", "--snapshot-keep", "--snapshot-every-s",
        "--snapshot-dir", "--snapshot-memory",
    ),
    "logs": (
        "--log-dir", "--tee", "--redirects", "--collapse", "--log-line-prefix-template", "--local-ranks-filter",
        "--duplicate-stdout-filters", "--duplicate-stderr-filters", "--report-output",
    ),
    "advanced": (),
}  # fmt: skip
"""The parts of `--help-all`, each with its flags in order; the last has those that no other names."""


class Print(Action):
    """A flag that prints a text about all flags, and ends the program.

    Args:
        const: makes the text of the flags.
    """

    def __init__(self, option_strings: Sequence[str], dest: str, **how: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **how)

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None
    ) -> None:
        print(self.const(cast(Any, parser).shown()), end="")
        parser.exit()


def short(actions: Sequence[Action]) -> str:
    """One screen: what people need on the first day."""
    known = {spelling for action in actions for spelling in action.option_strings}
    lines = [f"usage: {USAGE}", "", ABOUT, "", EXAMPLES]
    for title, flags in FIRST.items():
        lines += ["", f"{title}:"]
        lines += [f"  {flag:23} {text}" for flag, text in flags.items() if flag.split()[0] in known]
    return "\n".join([*lines, "", MORE, ""])


def everything(actions: Sequence[Action]) -> str:
    """All flags, by part."""
    formatter = HelpFormatter("hetagent")
    formatter.add_text(f"usage: {USAGE}")
    formatter.add_text(ABOUT)
    by_flag = {action.option_strings[-1]: action for action in actions}
    *named, rest = PARTS
    parts = {title: [by_flag.pop(flag) for flag in PARTS[title] if flag in by_flag] for title in named}
    for title, of_part in (parts | {rest: list(by_flag.values())}).items():
        formatter.start_section(title)
        formatter.add_arguments(of_part)
        formatter.end_section()
    return formatter.format_help()
