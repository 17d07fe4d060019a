"""The metrics of a server, for Prometheus: those of docs/operations.md, the alerts and the Grafana board.

Everything is counted from committed changes. No label holds a group or node id, so their values stay few.
"""

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hetrdzv.core.model import Group, Round
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.states import GroupState, NodePhase, StallKind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

DURATION_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""Buckets for recoveries (seconds)."""

SHORT_DURATION_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
"""Buckets for commits and late beats (seconds)."""


@dataclass
class _CountedGroup:
    """What is remembered of a group."""

    counted_at: float | None = None  # until when its slots were counted
    cause: str = "first"  # what its newest round formed after
    ended_at: float | None = None  # since when it has no running round


class Metrics:
    """The metrics of one server process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        gauge, counter = partial(Gauge, registry=registry), partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry, buckets=SHORT_DURATION_BUCKETS_S)
        self._groups = gauge("hetrdzv_groups", "Groups by state.", ["state"])
        self._quarantined = gauge("hetrdzv_quarantined_groups", "Groups that cannot be served.")
        self._nodes = gauge("hetrdzv_nodes", "Nodes by state.", ["state"])
        self._polls = gauge("hetrdzv_open_polls", "Long polls.")
        self._leads = gauge("hetrdzv_leader", "Whether this server answers requests about groups.")
        self._stalled = gauge(
            "hetrdzv_stalled_groups", "Groups whose workers wait for others, by kind.", ["kind"]
        )
        self._failing = gauge(
            "hetrdzv_commits_failing", "Whether changes are refused, since the last commit failed."
        )
        self._rounds = counter("hetrdzv_rounds", "Rounds formed, by the end of the one before.", ["cause"])
        self._restarts = counter("hetrdzv_restarts", "Restarts used.")
        self._finished = counter("hetrdzv_groups_finished", "Jobs by their outcome.", ["outcome"])
        self._slots = counter(
            "hetrdzv_slot_seconds", "Slot-seconds of the newest round, by activity.", ["doing"]
        )
        self._recovery = histogram(
            "hetrdzv_recovery_seconds",
            "From the end of a round until all workers of the next have started.",
            ["cause"],
            buckets=DURATION_BUCKETS_S,
        )
        self.commits = histogram("hetrdzv_commit_seconds", "Commits to the store.")
        self.commit_failures = counter("hetrdzv_commit_failures", "Commits that failed.")
        self.late = histogram(
            "hetrdzv_loop_late_seconds", "Lag of the event loop, sampled four times a second."
        )
        # these start at 0, or the first one would not be an increase
        for state in GroupState:
            if state.is_terminal:
                self._finished.labels(state.value)
        for doing in ("training", "unknown"):
            self._slots.labels(doing)
        self._known: defaultdict[str, _CountedGroup] = defaultdict(_CountedGroup)

    def forget_groups(self) -> None:
        """The groups were reloaded, or belong to another server now: drop what was remembered of them."""
        self._known.clear()

    def on_commit(
        self, group_id: str, old: Group | None, new: Group | None, events: Sequence[Reason], now: float
    ) -> None:
        """Note a committed change of a group, which may have been made or deleted."""
        if old is not None:
            self._count_slots(old, now)
        if new is None:
            self._known.pop(group_id, None)
            return
        known = self._known[group_id]
        known.counted_at = now
        for event in events:
            match event.code:
                case "round_formed":
                    known.cause = str(event.data.get("after", "first"))
                    self._rounds.labels(known.cause).inc()
                case "round_ended":
                    known.ended_at = now
                case "round_running":
                    if known.ended_at is not None:
                        self._recovery.labels(known.cause).observe(now - known.ended_at)
                    known.ended_at = None
                case "restart_spent":
                    self._restarts.inc()
        if new.state.is_terminal and not (old is not None and old.state.is_terminal and old.job == new.job):
            self._finished.labels(new.state.value).inc()
            self._known[group_id] = _CountedGroup(now)

    def _count_slots(self, group: Group, now: float) -> None:
        since, active = self._known[group.group_id].counted_at, group.round
        if since is not None and active is not None and not group.state.is_terminal:
            self._slots.labels(_describe_activity(group, active)).inc(
                active.world_size * max(0.0, now - since)
            )

    def render_text(
        self,
        groups: Iterable[Group] = (),
        *,
        now: float = 0.0,
        open_polls: int = 0,
        leads: bool = False,
        quarantined: int = 0,
        failing: bool = False,
    ) -> bytes:
        """All metrics in Prometheus' text format (`CONTENT_TYPE`); by default those of one that does not lead."""
        states: Tally[str] = Tally({state.value: 0 for state in GroupState})
        phases: Tally[str] = Tally({phase.value: 0 for phase in NodePhase})
        stalls: Tally[str] = Tally(dict.fromkeys(StallKind, 0))
        for group in groups:
            states[group.state.value] += 1
            phases.update(node.phase.value for node in group.nodes.values())
            if (stall := group.reported_stall) is not None:
                stalls[stall.hang.kind] += 1
            self._count_slots(group, now)
            self._known[group.group_id].counted_at = now
        for gauge, tally in ((self._groups, states), (self._nodes, phases), (self._stalled, stalls)):
            for label, number in tally.items():
                gauge.labels(label).set(number)
        self._polls.set(open_polls)
        self._leads.set(leads)
        self._quarantined.set(quarantined)
        self._failing.set(failing)
        return generate_latest(self._registry)


def _describe_activity(group: Group, newest: Round) -> str:
    """What is done with the slots of a group's newest round, in a word."""
    if group.state is not GroupState.RUNNING:
        return group.state.value
    if newest.reported_stall is not None:
        return "hanging"
    if newest.trains_at is not None:
        return "training"
    return "unknown" if newest.unseen else "starting_up"
