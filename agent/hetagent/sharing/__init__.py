"""Shares of the work: workers are told theirs, and how fast the slots of this node are is measured (`--measure`)."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from hetagent.feature import Feature, Flags
from hetagent.options.model import UsageError

if TYPE_CHECKING:
    from hetagent.assembly import Node
    from hetagent.job.ready.fitness import Check
    from hetagent.job.room import Room
    from hetagent.protocol.line import Line
    from hetrdzv.protocol.rooms.shares import Measured

MODES = ("auto", "on", "off", "again")
"""When slots are measured (policy.py)."""

DTYPES = ("auto", "float32", "tf32", "float16", "bfloat16")


class ShareWork(Feature):
    """Shares in each round, and `--measure`."""

    flags: ClassVar[Flags] = {
        "--measure": {
            "choices": MODES,
            "help": "Measure how fast this node's slots are before it joins (or HET_MEASURE). auto: if the script "
            "imports hetagent.shares or hetagent.uneven (default); on: always, or take what was measured earlier; "
            "again: once more; off: never.",
        },
        "--measure-dtype": {
            "choices": DTYPES,
            "default": "auto",
            "help": "In which dtype --measure computes; auto: float16 on GPUs, float32 on CPUs (default).",
        },
    }

    def __init__(self, args: Namespace, environ: Mapping[str, str]) -> None:
        self.mode: str = args.measure or environ.get("HET_MEASURE") or "auto"
        self.dtype: str = args.measure_dtype
        if self.mode not in MODES:
            raise UsageError(f"HET_MEASURE={self.mode} in the environment: give one of {', '.join(MODES)}")
        if self.dtype == "tf32" and args.device == "cpu":
            raise UsageError("--measure-dtype tf32: CPU workers have none; give float32")

    def room(self, node: "Node", line: "Line", others: "Sequence[Room]") -> "Room":
        """What tells workers their shares."""
        from hetagent.sharing.files import ShareRoom

        def decided(number: int, others_than_before: bool) -> None:
            for room in others:
                room.recount(number, others_than_before)

        return ShareRoom(line.ask, node.tell, decided, one_per_node=node.launch.one_per_node)

    def check(self, node: "Node", offers: Callable[..., None]) -> "Check | None":
        """What measures this node's slots."""
        from hetagent.speeds import speed_check

        def on_measured(speeds: "Sequence[float]", measured: "Measured") -> None:
            offers(speeds=tuple(speeds), measured=measured)

        return speed_check(node, self.mode, self.dtype, on_measured)
