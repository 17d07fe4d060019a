"""Workers' processes that are started before their round, so that a restart imports nothing.

`keeper.py` keeps one per local rank, `process.py` is one of them, `imports.py` what workers have imported so far,
`memory.py` whether there is room for more. `waiting.py` runs in the standbys and the workers themselves.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hetagent.feature import Feature, Flags
from hetagent.options.model import UsageError

if TYPE_CHECKING:
    from hetagent.assembly import Node
    from hetagent.job.room import Room
    from hetagent.protocol.line import Line

NONE, AUTO = "none", "auto"


class Preload(Feature):
    """`--preload`.

    Attributes:
        modules: what standbys import; empty: there are to be none.
    """

    flags: ClassVar[Flags] = {
        "--preload": {
            "metavar": "MODULE[,MODULE...]",
            "help": "What standby processes import ahead of a restart (or HET_PRELOAD); auto, the default: torch, and "
            "what the script imports; none: no standbys.",
        },
    }

    def __init__(self, args: Namespace, environ: Mapping[str, str]) -> None:
        self._given: str | None = args.preload
        names = [name.strip() for name in (self._given or environ.get("HET_PRELOAD") or AUTO).split(",")]
        self.modules = names if names != [NONE] else []
        for name in self.modules:
            if not all(part.isidentifier() for part in name.split(".")):
                flag = "--preload" if self._given else "HET_PRELOAD"
                raise UsageError(
                    f"{flag} takes names of modules with commas between them, {AUTO}, or {NONE}, not {name!r}"
                )

    def room(self, node: "Node", line: "Line", others: "Sequence[Room]") -> "Room | None":
        """The standbys. Where there can be none, a line says why.

        Raises:
            UsageError: the flag asks for them where there can be none.
        """
        problem, launch = None, node.options.launch
        if launch != "gpu":
            problem = f"--launch {launch} starts processes of other kinds"
        elif node.command is not None and not node.command.is_python:
            problem = f"{Path(node.command.entrypoint).name} is not a Python script"
        if not self.modules:
            return None
        if problem is None:
            from hetagent.standby.keeper import Standbys

            return Standbys(self.modules, node.tell)
        if self._given is not None:
            raise UsageError(f"--preload {self._given} makes no sense here, since {problem}: leave it out")
        node.tell(f"no standby processes, so restarts import everything again: {problem}")
        return None
