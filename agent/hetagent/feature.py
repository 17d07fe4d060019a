"""What an optional feature adds to the agent: all that the command line and the assembly know of it."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

if TYPE_CHECKING:
    from hetagent.assembly import Node
    from hetagent.job.ready.fitness import Check
    from hetagent.job.room import Room
    from hetagent.options.model import Options
    from hetagent.protocol.line import Line
    from hetrdzv.auth.tls import ClientTls

Flags = Mapping[str, Mapping[str, Any]]
"""Flags by name, each with the arguments of argparse's `add_argument`."""

MergeLines = Callable[[TextIO, Sequence[int], int, Callable[[str, str], str]], Any]
"""Makes what takes the workers' lines on their way to the console: of the console, the local ranks, the global rank of
local rank 0, and what a line of some ranks begins with (global and local ones, as text)."""


class Feature:
    """An optional feature of the agent. This base class adds nothing; a feature overrides what it needs.

    Importing a feature is cheap: whatever it needs beyond its flags it imports once that is wanted.

    Args:
        args: the command line, parsed but not checked.
        environ: the agent's environment.

    Attributes:
        flags: those that go with it.
        ports: how many it takes of `--port-range` for other nodes, beside the two of a round.

    Raises:
        UsageError: its flags make no sense.
    """

    flags: ClassVar[Flags] = {}
    ports = 0

    def __init__(self, args: Namespace, environ: Mapping[str, str]) -> None:
        """Take what was given of its own flags."""

    def fill(self, args: Namespace, environ: Mapping[str, str]) -> Sequence[str]:
        """Fill in other flags that were not given, before they are checked; returns notes for the terminal.

        Raises:
            UsageError: they make no sense here.
        """
        return ()

    def instead(self, options: "Options", token: str | None, tls: "ClientTls") -> int | None:
        """Do something else instead of running the agent, and return the exit status; None: the agent runs."""
        return None

    def room(self, node: "Node", line: "Line", others: "Sequence[Room]") -> "Room | None":
        """What it does in each round; None: nothing.

        Args:
            others: what will be all rooms of this node.
        """
        return None

    def check(self, node: "Node", offers: Callable[..., None]) -> "Check | None":
        """What it asks of this node before each round; None: nothing.

        Args:
            offers: changes fields of what this node offers to the group, from any thread.
        """
        return None

    @property
    def merged(self) -> MergeLines | None:
        """What becomes of the workers' lines on their way to the console; None: nothing."""
        return None
