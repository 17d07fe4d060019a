"""What an optional part of this node does in each round: all that the run loop calls without knowing which part it is.

A round goes through `on_round_start`, `worker_env` for each worker, `on_workers_started` and `on_round_end`, in the run
loop's thread. It may be over before its workers were started: then `on_round_end` is all that follows. What only one
part does, the run loop calls by name (`runloop/parts.py`).
"""

from collections.abc import Mapping
from typing import NamedTuple

from hetagent.launch.base import Assignment
from hetagent.launch.command import WorkerCommand
from hetagent.workers.processes import Workers
from hetrdzv.protocol.directive import Directive

Environ = Mapping[str, str | None]
"""Changes to a worker's environment; None removes a variable."""


class PreemptionNotice(NamedTuple):
    """The cloud, or whoever owns this machine, takes it away."""

    why: str  # in words
    deadline: float | None  # when (monotonic seconds); None: nobody knows, so `--grace-s` counts


class RoundHook:
    """An optional part of this node. This base class does nothing; a part overrides what it needs."""

    def on_round_start(self, assignment: Assignment, command: WorkerCommand) -> None:
        """The workers are about to be started; an exception ends the round."""

    def worker_env(self, local_rank: int) -> Environ:
        """What one worker gets."""
        return {}

    def on_workers_started(self, workers: Workers) -> None:
        """The workers were started."""

    def on_directive(self, directive: Directive) -> None:
        """The server has said this of the round that runs; a start was obeyed before, a stop or an exit is after.

        An exit comes between rounds, too.
        """

    def on_round_end(self) -> None:
        """The round is over here, and its workers are gone. Harmless if called again."""

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to look at; -1: there is none at the moment."""
        return -1

    def due_at(self) -> float | None:
        """When to look even if the descriptor shows nothing (monotonic seconds), unless workers are being stopped."""
        return None

    def on_wakeup(self) -> None:
        """Look: it is time, or the descriptor is readable."""
