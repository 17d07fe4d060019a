"""What an optional feature of this node does in each round: all that the run loop knows of it.

A round goes through `enter`, `prepare`, `environ` and `take_process` for each worker, `begin` and `end`, in the run
loop's thread. It may be over before its workers were started: then `end` is all that follows.
"""

import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hetagent.launch.base import Assignment
from hetagent.launch.command import WorkerCommand
from hetagent.workers.processes import Workers
from hetagent.workers.starter import Program
from hetrdzv.protocol.directive import DirectiveReply
from hetrdzv.protocol.states import ReportKind

Environ = Mapping[str, str | None]
"""Changes to a worker's environment; None removes a variable."""


class Announcement(NamedTuple):
    """Whoever lends this machine takes it away.

    Attributes:
        why: in words.
        gone_at: when (monotonic seconds); None: nobody knows, so `--grace-s` counts.
    """

    why: str
    gone_at: float | None


@dataclass(frozen=True, slots=True)
class Motion:
    """When workers moved in their round: asked for collectives, or said their steps (monotonic seconds).

    Attributes:
        first_at, last_at: None: they have not.
    """

    first_at: float | None = None
    last_at: float | None = None


class Room:
    """An optional feature of this node. This base class does nothing; a feature overrides what it needs."""

    def steady(self, given: Mapping[str, str]) -> Mapping[str, str]:
        """What every worker gets in every round.

        Args:
            given: this process's environment.
        """
        return {}

    def foresee(self, programs: Sequence[Program]) -> None:
        """Before the first round: what the worker of each local rank will probably run."""

    def kept(self) -> Collection[int]:
        """The sessions of its processes that outlive rounds; from any thread. Nobody else ends them."""
        return ()

    def pipes(self) -> Path | None:
        """The folder where workers listen that save their state when asked, should this agent die; None: none do."""
        return None

    # -- a round -----------------------------------------------------------------------------------------------

    def enter(self, assignment: Assignment) -> None:
        """This node is in a round, whose workers have not been started yet."""

    def prepare(self, assignment: Assignment, command: WorkerCommand) -> None:
        """The workers are about to be started.

        Raises:
            Exception: they cannot be; that ends the round.
        """

    def environ(self, local_rank: int) -> Environ:
        """What one worker gets."""
        return {}

    def take_process(
        self, local_rank: int, program: Program, stdout: int, stderr: int
    ) -> "subprocess.Popen[bytes] | None":
        """A process that is made to run a worker's program, and to write to these descriptors; None: start one.

        It leads a session of its own, and belongs to the round from now on.
        """
        return None

    def begin(self, workers: Workers, environs: Sequence[Environ]) -> None:
        """The workers were started.

        Args:
            environs: what each got, by local rank.
        """

    def heard(self, directive: DirectiveReply) -> None:
        """The server has said this of the round that runs; a start was obeyed before, a stop or an exit is after.

        An exit is heard between rounds, too.
        """

    def heeds_notice(self) -> bool:
        """Whether workers of this node save when they are told that their round is about to end."""
        return False

    def save(self, within_s: float) -> None:
        """The workers are about to be stopped: those save before that can, in so many seconds at most."""

    def saves_until(self) -> float | None:
        """Until when the stop waits for that (monotonic seconds); None: nobody saves, or all have."""
        return None

    def holds_end(self) -> bool:
        """Whether workers that have all ended well are only waiting for the end of their round."""
        return False

    def gives_up(self) -> str:
        """Why this node should end its part of the round and join again, as what comes after "the round"; empty: no."""
        return ""

    def report(self, kind: ReportKind) -> Mapping[str, Any]:
        """What a report of the round's start, success or failure says beside: fields of that report."""
        return {}

    def motion(self) -> Motion | None:
        """When the workers of this node moved in the round; None: nobody can tell."""
        return None

    def end(self) -> None:
        """The round is over here, and its workers are gone. Harmless if called again."""

    def say_goodbye(self, why: str, until: float | None) -> None:
        """The agent is about to end, perhaps before the job, and to say goodbye to the server.

        Args:
            why: as the server will be told.
            until: how long it may stay (monotonic seconds); None: it is to be gone at once, or nobody waits for it.
        """

    def close(self) -> None:
        """The agent ends."""

    def leave(self, until: float | None, hurried: Callable[[], bool]) -> str:
        """The last thing: the agent has ended, and the server knows; what takes long is done here.

        Args:
            until: when this agent has to be gone (monotonic seconds); None: nobody waits for that.
            hurried: whether it is to be gone at once.

        Returns:
            a line of the closing block; empty: none.
        """
        return ""

    # -- waking up ---------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to look at; -1: there is none at the moment."""
        return -1

    def due_at(self) -> float | None:
        """When to look even if the descriptor shows nothing (monotonic seconds), unless workers are being stopped."""
        return None

    def look(self) -> None:
        """Look: it is time, or the descriptor is readable."""

    def announces(self) -> Announcement | None:
        """That this machine is taken away; asked after each look. None: nobody has said so."""
        return None


def kept(rooms: Iterable[Room]) -> list[int]:
    """The sessions of all that some rooms keep for later rounds."""
    return [session for room in rooms for session in room.kept()]
