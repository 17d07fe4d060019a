"""The metrics of a server, for Prometheus.

Everything is counted from committed changes. No label holds a group or node id, so their values stay few.
"""

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hetrdzv.core.model import Group
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.states import GroupState, NodePhase, StallKind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""Buckets for waiting times (seconds)."""

COMMIT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
"""Buckets for commits (seconds)."""

_AT_WORK = (GroupState.STARTING, GroupState.RUNNING, GroupState.WAITING)


@dataclass(slots=True)
class _Known:
    """What is remembered of a group.

    Attributes:
        counted_at: until when its slots were counted.
        doing_at: until when it was counted what its workers did; they may have begun to hang then.
        cause: what its newest round formed after.
        ended_at, noticed_at: since when it has no running round, and since when its workers may save.
    """

    counted_at: float | None = None
    doing_at: float | None = None
    cause: str = "first"
    ended_at: float | None = None
    noticed_at: float | None = None


class Metrics:
    """The metrics of one server process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        gauge, counter = partial(Gauge, registry=registry), partial(Counter, registry=registry)
        seconds = partial(Histogram, registry=registry, buckets=SECONDS)
        short = partial(Histogram, registry=registry, buckets=COMMIT_SECONDS)
        self._groups = gauge("hetrdzv_groups", "Groups by state.", ["state"])
        self._quarantined = gauge(
            "hetrdzv_quarantined_groups",
            "Groups that are set aside, since the server cannot serve what is stored of them.",
        )
        self._nodes = gauge("hetrdzv_nodes", "Nodes by state.", ["state"])
        self._polls = gauge("hetrdzv_open_polls", "Long polls and event streams.")
        self._leads = gauge("hetrdzv_leader", "Whether this server answers requests about groups.")
        self._rounds = counter(
            "hetrdzv_rounds",
            "Rounds formed, by what ended the previous one (first: there was none).",
            ["cause"],
        )
        self._restarts = counter("hetrdzv_restarts", "Restarts used.")
        self._finished = counter("hetrdzv_groups_finished", "Jobs by their outcome.", ["outcome"])
        for state in GroupState:
            if state.terminal:  # starts at 0, or the first outcome would not be an increase
                self._finished.labels(state.value)
        self._stalled = gauge(
            "hetrdzv_stalled_groups",
            "Groups whose workers have waited for others for long, by kind.",
            ["kind"],
        )
        self._stalls = counter("hetrdzv_stalls", "How often workers began to wait for long.")
        self._from_snapshot = counter("hetrdzv_rounds_from_snapshot", "Rounds that began from a snapshot.")
        self._steps_lost = counter("hetrdzv_steps_lost", "Steps that were lost when rounds ended.")
        self._rendezvous = seconds(
            "hetrdzv_rendezvous_seconds", "Time from the first waiting node to the round."
        )
        self._recovery = seconds(
            "hetrdzv_recovery_seconds",
            "Time from the end of a round until all members of the next have started their workers.",
            ["cause"],
        )
        self._notices = seconds(
            "hetrdzv_notice_seconds",
            "How long workers had to save before a planned stop, by how that ended (ready, expired, cut_short).",
            ["end"],
        )
        self._slots = counter(
            "hetrdzv_slot_seconds",
            "Slots of the newest round times seconds, by group state.",
            ["state"],
        )
        self._running_slots = counter(
            "hetrdzv_running_slot_seconds",
            "Of the running ones, by what their workers do (starting_up, training, hanging, unknown); training divided "
            "by all slot seconds that are not unknown is the goodput.",
            ["doing"],
        )
        for doing in ("starting_up", "training", "hanging", "unknown"):
            self._running_slots.labels(doing)
        self._commits = short("hetrdzv_commit_seconds", "Commits to the store.")
        self._commit_failures = counter("hetrdzv_commit_failures", "Commits that failed.")
        self._failing = gauge(
            "hetrdzv_commits_failing",
            "Whether the last commit failed: the committed state is served, changes are refused.",
        )
        self._lag = gauge(
            "hetrdzv_loop_lag_seconds",
            "How late the event loop was when last measured; what waits in sockets waits this long.",
        )
        self._lags = short("hetrdzv_loop_late_seconds", "How late the event loop was, four times a second.")
        self._known: defaultdict[str, _Known] = defaultdict(_Known)

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
        self._known.clear()

    def published(
        self, group_id: str, old: Group | None, new: Group | None, events: Sequence[Reason], now: float
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
            self._known.pop(group_id, None)
            return
        known = self._known[group_id]
        known.counted_at = now
        if old is None or old.state is not GroupState.RUNNING:
            known.doing_at = now
        elif new.state is not GroupState.RUNNING:
            hangs = new.round is not None and new.round.end is not None and new.round.end.hang is not None
            self._count_doing(old, now, rest="hanging" if hangs else _doing(old))
        for event in events:
            self._happened(known, event, old, now)
        if new.state.terminal and not (old is not None and old.state.terminal and old.job == new.job):
            self._finished.labels(new.state.value).inc()
            self._known[group_id] = _Known(now)

    def _happened(self, known: _Known, event: Reason, old: Group | None, now: float) -> None:
        match event.code:
            case "began_from_snapshot":
                self._from_snapshot.inc(int("step" in event.data))
                self._steps_lost.inc(float(event.data.get("lost", 0)))
            case "job_began":
                known.cause = "first"
            case "round_formed":
                known.cause = str(event.data.get("after", "first"))
                self._rounds.labels(known.cause).inc()
                self._rendezvous.observe(now - _waits_since(old, now))
            case "stop_announced":
                known.noticed_at = now
            case "ready_to_stop":
                self._notice_over(known, "ready", now)
            case "notice_expired":
                self._notice_over(known, "expired", now)
            case "round_ended":
                known.ended_at = now
                self._notice_over(known, "cut_short", now)
            case "round_running":
                if known.ended_at is not None:
                    self._recovery.labels(known.cause).observe(now - known.ended_at)
                known.ended_at = None
            case "restart_spent":
                self._restarts.inc()
            case "stalled":
                self._stalls.inc()

    def _notice_over(self, known: _Known, how: str, now: float) -> None:
        if known.noticed_at is not None:
            self._notices.labels(how).observe(now - known.noticed_at)
        known.noticed_at = None

    def _count_slots(self, group: Group, now: float) -> None:
        since = self._known[group.group_id].counted_at
        if since is not None and group.round is not None and group.state in _AT_WORK:
            self._slots.labels(group.state.value).inc(group.round.world_size * max(0.0, now - since))
        if group.state is GroupState.RUNNING:
            self._count_doing(group, now)

    def _count_doing(self, group: Group, now: float, rest: str = "") -> None:
        """Count what the workers of a running round do; while it is not clear whether they hang, not yet.

        Args:
            rest: what they did in the time of which that is not clear, the round being over.
        """
        known, active = self._known[group.group_id], group.round
        if known.doing_at is None or active is None:
            known.doing_at = now
            return
        until = now
        if not rest and active.stall is not None and not active.stall.told:
            until = min(now, max(known.doing_at, active.stall.since))
        slots = active.world_size * max(0.0, until - known.doing_at)
        self._running_slots.labels(rest or _doing(group)).inc(slots)
        known.doing_at = until

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
            if (active := group.active_round) is not None and (stall := active.told_stall) is not None:
                stalls[stall.kind] += 1
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


def _doing(group: Group) -> str:
    """What the workers of a running round do, in a word."""
    active = group.round
    if active is not None and active.told_stall is not None:
        return "hanging"
    if active is not None and active.trains_at is not None:
        return "training"
    return "unknown" if active is None or active.unseen else "starting_up"


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
