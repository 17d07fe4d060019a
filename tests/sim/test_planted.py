"""Faults that are planted on purpose: for each, some story ends with a check that fails, or that check is no use.

Parts are replaced by what they are called, so a line may look as it likes. Which lines of the core no test looks at
tells `make mutants`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from hetagent.session.backoff import Backoff
from hetagent.session.session import Session
from hetagent.snapshots.node.reporter import SnapshotReporter
from hetrdzv.core import directive
from hetrdzv.core.model import Group, Node
from hetrdzv.core.rounds import reconcile, timers, transitions
from hetrdzv.core.selection import best_set
from hetrdzv.core.selection.best_set import WorldSizes
from hetrdzv.core.snapshots import catalog, start_snapshot
from hetrdzv.service import clock, ledger
from hetrdzv.service.leases import LeaseTable
from hetrdzv.service.service import Service
from tests.sim.world import run

MOST_SEEDS = 400
"""How many stories are told at most until one ends with the fault."""

FIRST_SEED = {"nobody corrects who is ready": 1_600, "what may be safe is overwritten": 400}
"""Where to begin, if not at 0: it takes a coincidence that few stories have."""


def _overdue_at(group: Group, node: Node) -> float:
    assert group.round is not None
    assert group.round.end is not None
    return group.round.end.at + group.spec.stop_timeout_s + timers.STOP_TIMEOUT_MARGIN_S


def _start_elsewhere(real: Callable[..., Any]) -> Callable[..., Any]:
    def start(*args: Any) -> Any:
        made = real(*args)
        return made and replace(made, master=replace(made.master, node_id="n9"))

    return start


def _without_nodes(real: Callable[..., Any]) -> Callable[..., Any]:
    async def changes(*args: Any) -> Any:
        return {key: record for key, record in (await real(*args)).items() if "/nodes/" not in key}

    return changes


def _deaf_to_polls(real: Callable[..., Any]) -> Callable[..., Any]:
    def heard(leases: LeaseTable, *args: Any, polls: bool = False, **more: Any) -> None:
        if not polls:
            real(leases, *args, **more)

    return heard


def _beat_on_time(served: clock.ServedClock) -> float:
    at = served._monotonic()
    served._base, served._beat_at = served._base + at - served._beat_at, at
    return 0.0


def _ahead(real: Callable[..., Any]) -> Callable[..., Any]:
    def group(service: Service, group_id: str) -> Any:
        real(service, group_id)
        return service._ledger.proposed_group(group_id)

    return group


def _downward(worlds: WorldSizes, size: int) -> range:
    return range(size, 0, -1)


def _any_number(real: Any) -> Any:
    def exact(items: Any, worlds: WorldSizes, *more: Any) -> Any:
        return real(items, replace(worlds, min_nodes=1, max_nodes=None), *more)

    return exact


def _of_any_job(group: Group, node: Node, origin: str, alone: str | None = None) -> Any:
    return (
        node.snapshots.held
        if node.snapshots is not None and catalog.is_present_and_staying(group, node)
        else ()
    )


def _in_memory(real: Callable[..., Any]) -> Callable[..., Any]:
    def gathered(*args: Any) -> Any:
        return [one for one in real(*args) if one.on_disk is None]

    return gathered


PLANTED: dict[str, tuple[Any, str, Any]] = {
    "a failure is judged at once": (reconcile, "round_stop_deadline", lambda group, end: 0.0),
    "who was not told to stop is overdue": (timers, "member_stop_deadline", _overdue_at),
    "losses cost restarts": (transitions, "MEMBER_LOSS_KINDS", frozenset()),
    "the master is not of the round": (directive, "_make_start", _start_elsewhere(directive._make_start)),
    "what is not committed is read": (Service, "group", _ahead(Service.group)),
    "nodes are not stored": (ledger, "_make_changes", _without_nodes(ledger._make_changes)),
    "no lease after a load": (LeaseTable, "restore_leases", lambda leases, groups: None),
    "polls renew no lease": (LeaseTable, "record_contact", _deaf_to_polls(LeaseTable.record_contact)),
    "time in which the server stood still counts": (clock.ServedClock, "begin_beat", _beat_on_time),
    "nobody stops without a server": (Backoff, "workers_stop_at", lambda backoff, max_disconnect_s: None),
    "nobody corrects who is ready": (Session, "_is_contradicted", lambda session, number, directive: False),
    "who has to go is given no time": (
        transitions,
        "stop_notice_deadline",
        lambda group, now, leaves_at: now + 0.05,
    ),
    "any world size is a multiple": (WorldSizes, "sizes_down_from", _downward),
    "bounds in nodes are forgotten": (best_set, "_choose_exactly", _any_number(best_set._choose_exactly)),
    "a snapshot need not be complete": (
        start_snapshot,
        "select_snapshot",
        lambda kept, found: found[0] if found else None,
    ),
    "what nobody can load is taken": (catalog, "_list_unloadable_snapshots", lambda group, members: {}),
    "inventory of another job count": (catalog, "list_usable_snapshots", _of_any_job),
    "nodes that are gone hold snapshots": (catalog, "is_present_and_staying", lambda group, node: True),
    "an agent that is gone serves": (start_snapshot, "forget_expired_holders", lambda *work: None),
    "what is on disk is not seen": (
        start_snapshot,
        "list_job_snapshots",
        _in_memory(start_snapshot.list_job_snapshots),
    ),
    "what may be safe is overwritten": (
        SnapshotReporter,
        "retained",
        property(lambda reporter: (reporter.safe,) if reporter.safe else ()),
    ),
}
"""What is broken: the module or class, the name in it, and what it becomes."""


@pytest.mark.long
@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_fault_is_found(what: str) -> None:
    place, name, broken = PLANTED[what]
    with mock.patch.object(place, name, broken):
        first = FIRST_SEED.get(what, 0)
        found = next(
            (outcome for outcome in map(run, range(first, first + MOST_SEEDS)) if outcome.check), None
        )
    assert found is not None, f"{MOST_SEEDS} stories passed although {what}"
    print(f"{what}: seed {found.seed}: {found.check}")
