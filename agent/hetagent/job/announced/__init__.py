"""`--watch` and `--leave-when`: this node leaves in time where somebody announces that its machine is taken away."""

import shutil
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from hetagent.feature import Feature, Flags
from hetagent.options.model import UsageError

if TYPE_CHECKING:
    from hetagent.assembly import Node
    from hetagent.job.announced.watching import Announcements, Source
    from hetagent.job.ready.fitness import Check
    from hetagent.job.room import Room
    from hetagent.protocol.line import Line

SPOT, REBALANCE = "spot", "rebalance"


class LeaveInTime(Feature):
    """`--watch` and `--leave-when`."""

    flags: ClassVar[Flags] = {
        "--watch": {
            "metavar": "WHAT",
            "help": "Leave, once all workers could save, when the cloud announces that it takes this machine away (or "
            "HET_WATCH). spot: AWS, Google Cloud or Azure say so; spot,rebalance: also when AWS says that it may.",
        },
        "--leave-when": {
            "metavar": "FILE|COMMAND",
            "help": "The same when this file appears, or this /bin/sh command exits with 0 (or HET_LEAVE_WHEN).",
        },
    }

    def __init__(self, args: Namespace, environ: Mapping[str, str]) -> None:
        given: str = args.watch or environ.get("HET_WATCH", "")
        self.watched = frozenset(filter(None, given.split(",")))
        self.when: str = args.leave_when or environ.get("HET_LEAVE_WHEN", "")
        self._announcements: Announcements | None = None
        if unknown := sorted(self.watched - {SPOT, REBALANCE}):
            where = "--watch" if args.watch else "HET_WATCH in the environment:"
            raise UsageError(f"{where} {unknown[0]}: give {SPOT}, or {SPOT},{REBALANCE}")

    def check(self, node: "Node", offers: Callable[..., None]) -> "Check | None":
        """What is announced already: then this node does not join."""
        sources = self._sources(node.identity.incarnation, node.tell)
        if sources:
            from hetagent.job.announced.watching import Announcements

            self._announcements = Announcements(sources, node.tell, node.options.grace_s)
        return self._announcements

    def room(self, node: "Node", line: "Line", others: "Sequence[Room]") -> "Room | None":
        """What looks for announcements from then on."""
        return self._announcements

    def _sources(self, incarnation: str, tell: Callable[[str], None]) -> "list[Source]":
        sources: list[Source] = []
        if self.watched:
            from hetagent.job.announced.clouds import Clouds

            sources.append(Clouds(tell, rebalance=REBALANCE in self.watched))
        if self.when:
            from hetagent.job.announced.local import WhenCommand, WhenFile

            is_command = len(self.when.split()) > 1 or shutil.which(self.when) is not None
            sources.append(WhenCommand(self.when, incarnation, tell) if is_command else WhenFile(self.when))
        return sources
