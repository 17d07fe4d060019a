"""The optional parts of an agent by name, and what only some of them do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetagent.health.ready_file import ReadyFile
from hetagent.monitor.watcher import Watcher
from hetagent.preemption.watching import PreemptionWatch
from hetagent.roundhook import RoundHook
from hetagent.runloop.deaths import ProgramDeaths
from hetagent.runloop.notices import StopNotices
from hetagent.runloop.share_files import ShareFiles
from hetagent.runloop.start_check import StartCheck
from hetagent.snapshots.node.hook import SnapshotHook
from hetagent.standby.keeper import StandbyPool


@dataclass(slots=True, kw_only=True)
class AgentParts:
    """What an agent has beside its workers; None: it does without.

    Attributes:
        notices: announce the end of the round to workers.
        start_check: looks whether workers that have run for a while have met.
        deaths: watches the processes that a node's one program has started.
        monitor: watches workers: steps, hangs, stacks, output.
        shares: tells workers their shares of the work.
        snapshots: the state of training in this node's memory.
        standbys: processes that have imported what workers need.
        preemption: whether this machine is taken away.
        ready_file: shows whether the server has this node.
    """

    notices: StopNotices | None = None
    start_check: StartCheck | None = None
    deaths: ProgramDeaths | None = None
    monitor: Watcher | None = None
    shares: ShareFiles | None = None
    snapshots: SnapshotHook | None = None
    standbys: StandbyPool | None = None
    preemption: PreemptionWatch | None = None
    ready_file: ReadyFile | None = None

    @property
    def hooks(self) -> Sequence[RoundHook]:
        """Those with work in each round, in the order in which they do it."""
        every: Sequence[RoundHook | None] = (
            self.notices,
            self.start_check,
            self.deaths,
            self.monitor,
            self.shares,
            self.snapshots,
            self.standbys,
        )
        return [hook for hook in every if hook is not None]

    def persistent_sessions(self) -> list[int]:
        """The sessions of processes that outlive rounds, which nobody else ends; from any thread."""
        parts = (self.snapshots, self.preemption, self.standbys)
        return [session for part in parts if part is not None for session in part.persistent_sessions()]

    def static_env(self, given: Mapping[str, str]) -> dict[str, str]:
        """What every worker gets in every round.

        Args:
            given: this process's environment.
        """
        monitor = self.monitor.static_env(given) if self.monitor is not None else {}
        return {**monitor, **(self.snapshots.static_env(given) if self.snapshots is not None else {})}

    def supports_graceful_stop(self) -> bool:
        """Whether workers of this node save once their round is announced to end."""
        return any(
            part is not None and part.supports_graceful_stop() for part in (self.notices, self.snapshots)
        )

    def first_failure_at(self) -> float | None:
        """When the first process died that this node's program has started (monotonic seconds); None: none has."""
        return self.deaths.first_failure_at() if self.deaths is not None else None

    def close(self) -> None:
        """The agent ends."""
        for part in (self.ready_file, self.preemption, self.snapshots, self.standbys):
            if part is not None:
                part.close()
