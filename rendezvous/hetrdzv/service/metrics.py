"""The metrics of a server, for Prometheus.

Everything is counted from committed changes. No label holds a group or node id, so their values stay few.
"""

from collections import Counter as Tally
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hetrdzv.core.model import Group
from hetrdzv.protocol.events import Event
from hetrdzv.protocol.states import GroupState, NodePhase, StallKind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""Buckets for waiting times (seconds)."""

COMMIT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
"""Buckets for commits (seconds)."""

_AT_WORK = (GroupState.STARTING, GroupState.RUNNING, GroupState.WAITING)


class Metrics:
    """The metrics of one server process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._groups = Gauge("hetrdzv_groups", "Groups by state.", ["state"], registry=self._registry)
        self._quarantined = Gauge(
            "hetrdzv_quarantined_groups",
            "Groups that are set aside, since the server cannot serve what is stored of them.",
            registry=self._registry,
        )
        self._nodes = Gauge("hetrdzv_nodes", "Nodes by state.", ["state"], registry=self._registry)
        self._polls = Gauge("hetrdzv_open_polls", "Long polls and event streams.", registry=self._registry)
        self._leads = Gauge(
            "hetrdzv_leader", "Whether this server answers requests about groups.", registry=self._registry
        )
        self._rounds = Counter(
            "hetrdzv_rounds",
            "Rounds formed, by what ended the previous one (first: there was none).",
            ["cause"],
            registry=self._registry,
        )
        self._restarts = Counter("hetrdzv_restarts", "Restarts used.", registry=self._registry)
        self._finished = Counter(
            "hetrdzv_groups_finished", "Jobs by their outcome.", ["outcome"], registry=self._registry
        )
        for state in GroupState:
            if state.terminal:  # starts at 0, or the first outcome would not be an increase
                self._finished.labels(state.value)
        self._stalled = Gauge(
            "hetrdzv_stalled_groups",
            "Groups whose workers have waited for others for long, by kind.",
            ["kind"],
            registry=self._registry,
        )
        self._stalls = Counter(
            "hetrdzv_stalls", "How often workers began to wait for long.", registry=self._registry
        )
        self._rendezvous = Histogram(
            "hetrdzv_rendezvous_seconds",
            "Time from the first waiting node to the round.",
            registry=self._registry,
            buckets=SECONDS,
        )
        self._recovery = Histogram(
            "hetrdzv_recovery_seconds",
            "Time from the end of a round until all members of the next have started their workers.",
            ["cause"],
            registry=self._registry,
            buckets=SECONDS,
        )
        self._notices = Histogram(
            "hetrdzv_notice_seconds",
            "How long workers had to save before a planned stop, by how that ended (ready, expired, cut_short).",
            ["end"],
            registry=self._registry,
            buckets=SECONDS,
        )
        self._slots = Counter(
            "hetrdzv_slot_seconds",
            "Slots of the newest round times seconds, by group state; running divided by all is the goodput.",
            ["state"],
            registry=self._registry,
        )
        self._commits = Histogram(
            "hetrdzv_commit_seconds",
            "Commits to the store.",
            registry=self._registry,
            buckets=COMMIT_SECONDS,
        )
        self._commit_failures = Counter(
            "hetrdzv_commit_failures", "Commits that failed.", registry=self._registry
        )
        self._failing = Gauge(
            "hetrdzv_commits_failing",
            "Whether the last commit failed: the committed state is served, changes are refused.",
            registry=self._registry,
        )
        self._lag = Gauge(
            "hetrdzv_loop_lag_seconds",
            "How late the event loop was when last measured; what waits in sockets waits this long.",
            registry=self._registry,
        )
        self._lags = Histogram(
            "hetrdzv_loop_late_seconds",
            "How late the event loop was, four times a second.",
            registry=self._registry,
            buckets=COMMIT_SECONDS,
        )
        self._counted_at: dict[str, float] = {}
        self._ended_at: dict[str, float] = {}
        self._cause: dict[str, str] = {}
        self._noticed_at: dict[str, float] = {}
        self._known = (self._counted_at, self._ended_at, self._cause, self._noticed_at)

    def committed(self, seconds: float) -> None:
        """Note how long a commit took (seconds)."""
        self._commits.observe(seconds)

    def commit_failed(self) -> None:
        """Note that a commit failed."""
        self._commit_failures.inc()

    def loop_was_late(self, seconds: float) -> None:
        """Note how late the event loop was (seconds)."""
        self._lag.set(seconds)
        self._lags.observe(seconds)

    def forget(self) -> None:
        """The groups were reloaded, or belong to another server now: drop what was remembered of them."""
        for known in self._known:
            known.clear()

    def published(
        self, group_id: str, old: Group | None, new: Group | None, events: Sequence[Event], now: float
    ) -> None:
        """Note a committed change of a group.

        Args:
            old, new: the group before and after; None if it did not exist, or was deleted.
            events: what happened in between.
            now: the server's clock (seconds).
        """
        if old is not None:
            self._count_slots(old, now)
        if new is None:
            for known in self._known:
                known.pop(group_id, None)
            return
        self._counted_at[group_id] = now
        for event in events:
            self._happened(group_id, event, old, now)
        if new.state.terminal and not (old is not None and old.state.terminal and old.job == new.job):
            self._finished.labels(new.state.value).inc()
            for known in self._known[1:]:
                known.pop(group_id, None)

    def _happened(self, group_id: str, event: Event, old: Group | None, now: float) -> None:
        match event.kind:
            case "job_began":
                self._cause.pop(group_id, None)
            case "round_formed":
                self._cause[group_id] = event.cause or "first"
                self._rounds.labels(self._cause[group_id]).inc()
                self._rendezvous.observe(now - _waits_since(old, now))
            case "stop_announced":
                self._noticed_at[group_id] = now
            case "ready_to_stop":
                self._notice_over(group_id, "ready", now)
            case "notice_expired":
                self._notice_over(group_id, "expired", now)
            case "round_ended":
                self._ended_at[group_id] = now
                self._notice_over(group_id, "cut_short", now)
            case "round_running":
                ended_at = self._ended_at.pop(group_id, None)
                if ended_at is not None:
                    self._recovery.labels(self._cause.get(group_id, "first")).observe(now - ended_at)
            case "restart_spent":
                self._restarts.inc()
            case "stalled":
                self._stalls.inc()

    def _notice_over(self, group_id: str, how: str, now: float) -> None:
        noticed_at = self._noticed_at.pop(group_id, None)
        if noticed_at is not None:
            self._notices.labels(how).observe(now - noticed_at)

    def _count_slots(self, group: Group, now: float) -> None:
        since = self._counted_at.get(group.group_id)
        if since is not None and group.round is not None and group.state in _AT_WORK:
            self._slots.labels(group.state.value).inc(group.round.world_size * max(0.0, now - since))

    def render(
        self,
        groups: Iterable[Group],
        *,
        now: float,
        open_polls: int,
        leads: bool,
        quarantined: int = 0,
        failing: bool = False,
    ) -> bytes:
        """All metrics in Prometheus' text format (`CONTENT_TYPE`)."""
        states: Tally[str] = Tally({state.value: 0 for state in GroupState})
        phases: Tally[str] = Tally({phase.value: 0 for phase in NodePhase})
        stalls: Tally[str] = Tally(dict.fromkeys(StallKind, 0))
        for group in groups:
            states[group.state.value] += 1
            phases.update(node.phase.value for node in group.nodes.values())
            if (active := group.active_round) is not None and active.stall is not None and active.stall.told:
                stalls[active.stall.kind] += 1
            self._count_slots(group, now)
            self._counted_at[group.group_id] = now
        for gauge, tally in ((self._groups, states), (self._nodes, phases), (self._stalled, stalls)):
            for label, number in tally.items():
                gauge.labels(label).set(number)
        self._polls.set(open_polls)
        self._leads.set(leads)
        self._quarantined.set(quarantined)
        self._failing.set(failing)
        return generate_latest(self._registry)


def _waits_since(group: Group | None, now: float) -> float:
    """Since when nodes have waited for the round that forms now.

    Args:
        group: as it was before the round.
    """
    if group is None or group.state.terminal:
        return now
    if group.round is not None:
        return now if group.round.end is None else group.round.end.at
    return now if group.waiting_since is None else group.waiting_since
