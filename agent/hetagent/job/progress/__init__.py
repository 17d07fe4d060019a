"""Watching workers: how far they have come, who hangs and where, and what they write (`--report-stacks`)."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from hetagent.feature import Feature, Flags
from hetagent.options.values import ON_OFF, is_on

if TYPE_CHECKING:
    from hetagent.assembly import Node
    from hetagent.job.room import Room
    from hetagent.protocol.line import Line


class Watch(Feature):
    """The watch over the workers of each round, and `--report-stacks`."""

    flags: ClassVar[Flags] = {
        "--report-stacks": {
            "choices": ON_OFF,
            "help": "Show the workers' Python stacks to the server if asked, or if they hang (or HET_REPORT_STACKS; "
            "default on).",
        },
    }

    def __init__(self, args: Namespace, environ: Mapping[str, str]) -> None:
        self.reports_stacks = is_on(args.report_stacks, "HET_REPORT_STACKS", environ)

    def room(self, node: "Node", line: "Line", others: "Sequence[Room]") -> "Room":
        """What watches the workers."""
        from hetagent.job.progress.watcher import Watcher
        from hetagent.node.gpu import devices

        return Watcher(
            line,
            node.launch,
            cpu=devices.is_cpu_job(node.devices),
            reports_stacks=self.reports_stacks,
            keeps_stacks=node.options.torchrun.log_dir is not None,
            reports_logs=node.options.report_output,
            secrets=node.access.secrets,
            say=node.tell,
        )
