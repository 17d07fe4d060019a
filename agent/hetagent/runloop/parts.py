"""The optional parts of an agent by name, and what only some of them do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

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
    """What an agent has beside its workers; None: it does without. Hooks are in the order of their work in a round."""

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
        """Those with work in each round."""
        parts = (getattr(self, field.name) for field in fields(self))
        return [part for part in parts if isinstance(part, RoundHook)]

    def persistent_sessions(self) -> list[int]:
        """The sessions of processes that outlive rounds, which nobody else ends; from any thread."""
        parts = (self.snapshots, self.standbys)
        return [session for part in parts if part is not None for session in part.persistent_sessions()]

    def static_env(self, given: Mapping[str, str]) -> dict[str, str]:
        """What every worker gets in every round; `given` is this process's environment."""
        parts = (self.monitor, self.snapshots)
        return {
            name: value
            for part in parts
            if part is not None
            for name, value in part.static_env(given).items()
        }

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
