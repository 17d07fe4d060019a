"""Records: a store that got every change of a group holds the group; older versions are read, newer ones refused."""

import json
from collections.abc import Mapping
from dataclasses import fields, replace

import pytest

from hetrdzv.core.commands import (
    Report,
    Tick,
)
from hetrdzv.core.model import Cause, End, Group, Node, Notice, Round
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.errors import StorageError
from hetrdzv.protocol.failure import Ended, Failure, RootCause
from hetrdzv.protocol.pages import Event
from hetrdzv.protocol.progress import Moved
from hetrdzv.protocol.reasons import ends, warnings
from hetrdzv.protocol.reasons.events import node_joined
from hetrdzv.protocol.reasons.reason import ReasonCode
from hetrdzv.protocol.rounds import RoundRecord
from hetrdzv.protocol.settings import GroupSpec, OnJoin
from hetrdzv.protocol.snapshots import (
    Chosen,
    Held,
    Holdings,
    RankPart,
    Stamp,
)
from hetrdzv.protocol.snapshots import Kept as SnapshotsKept
from hetrdzv.protocol.snapshots import Source as SnapshotSource
from hetrdzv.protocol.states import EndKind, GroupState, NodePhase, ReportKind
from hetrdzv.protocol.texts.who import Nodes
from hetrdzv.storage import records
from hetrdzv.storage.records import changes, event_key, event_record, group_prefix
from tests.core.leases import step
from tests.support.restored import encoded, restore

WARNINGS = (
    warnings.versions_differ("torch", [("2.12.1", Nodes.of(["gpu1"])), ("2.13.0", Nodes.of(["gpu2"]))]),
    warnings.no_label("rack", Nodes.of(["gpu1"])),
)

NOW = 5_000.0
"""The clock of the server that restores (seconds)."""


class Kept:
    """A store in small: what the changes of one group made of it."""

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}

    def take(self, old: Group | None, new: Group | None) -> None:
        puts, deletes = changes(old, new)
        assert deletes <= self.records.keys(), "deletes what is not there"
        assert not puts.keys() & deletes
        assert all(self.records.get(key) != value for key, value in puts.items()), (
            "puts what is there already"
        )
        self.records.update(puts)
        for key in deletes:
            del self.records[key]

    def restored(self, group_id: str) -> Group:
        return restore(self.records, NOW).groups[group_id]


def as_restored(group: Group) -> Group:
    """What a server has to find after this group: everybody who is there has a full lease, and nobody is waited for."""
    nodes = {
        n.node_id: replace(n, heard_at=0.0 if n.gone else NOW, disconnected_at=None, stop_acked_at=None)
        for n in group.nodes.values()
    }
    current = replace(group.round, stall=None) if group.round is not None else None
    return replace(group, nodes=nodes, round=current)


def record_of(stored: Mapping[str, bytes], key: str) -> dict[str, object]:
    parsed: dict[str, object] = json.loads(stored[key])
    return parsed


def member(number: int, slots: int = 4) -> Member:
    return Member(
        node_id=f"gpu{number}",
        incarnation="x",
        group_rank=number,
        rank_offset=number * slots,
        slots=slots,
        address="10.0.0.1",
        port=4000,
        script_port=4001,
        role="default",
        role_offset=number * slots,
        role_world_size=2 * slots,
    )


HELD = Held(
    round=3,
    step=90,
    world_size=8,
    whole=True,
    sharded=True,
    size=7,
    ranks=(RankPart(rank=2, digest="ab"),),
)
HOLDINGS = Holdings(
    origin="0123456789abcdef",
    port=7000,
    key="k",
    held=(HELD,),
    reached=94,
    refused=(Stamp(round=2, step=50),),
)


def full() -> Group:
    """A group in which no field has its default."""
    failure = Failure(
        local_rank=1,
        rank=5,
        exit_code=None,
        signal="SIGSEGV",
        message="boom\n\x00é",
        at=90.1,
    )
    hang = Failure(local_rank=0, rank=4, message="line 7", at=91.5)
    node = Node(
        node_id="gpu0",
        incarnation="x",
        slots=4,
        address="10.0.0.1",
        port=4000,
        script_port=4001,
        role="trainer",
        labels={"rack": "r1"},
        weight=0.5,
        snapshots=HOLDINGS,
        device={"gpu": "H200"},
        wants_command=True,
        wants_members=True,
        wants_daemon=True,
        takes_notice=True,
        script="train.py",
        ready_within_s=60.0,
        not_ready="node check failed",
        daemon=("orted", "-mca", "é"),
        job=2,
        phase=NodePhase.LOST,
        joined_at=1.5,
        acked_round=3,
        member_of=4,
        ready_to_stop=3,
        failure=failure,
        leaving=ends.departed(ReasonCode.NODE_DRAINED),
        rejected=ends.bad_address("g", "gpu0", "127.0.0.1"),
        departed_at=0.1 + 0.2,
        departure_reason=ends.lease_expired(5.0),
        former=("w",),
    )
    end = End(
        cause=Cause(
            kind=EndKind.LOST,
            reason=ends.node_lost("gpu0", ends.departed(ReasonCode.CONNECTION_LOST)),
            node_id="gpu0",
        ),
        before=Ended(node_id="gpu1", rank=4),
        at=99.0,
        consequences=True,
        hang=hang,
        stopped_at=99.5,
        time={"starting_up": 1.5, "training": 20.25},
    )
    return Group(
        group_id="g",
        spec=GroupSpec(
            min_nodes=2,
            max_nodes=5,
            min_world_size=4,
            max_world_size=12,
            world_size_multiple=2,
            max_restarts=7,
            join_timeout_s=60.5,
            last_call_s=2.0,
            replace_wait_s=3.0,
            stop_timeout_s=4.0,
            notice_s=45.0,
            lease_s=6.0,
            max_disconnect_s=70.0,
            no_restart_on=(2, 64),
            restart_wait_s=30.0,
            hang_timeout_s=30.0,
            growth_pause_s=5.0,
            on_join=OnJoin.SPARE,
            rank_order="topology:zone,rack",
            master="public=yes",
            unit="rack",
            command=("train.py", "--lr", "0.1"),
        ),
        given=frozenset({"min_nodes", "command"}),
        spec_fixed=False,
        by_put=True,
        state=GroupState.FAILED,
        job=2,
        last_round=4,
        restarts=1,
        round=Round(
            number=4,
            members=(member(0), member(1)),
            restart_count=1,
            formed_at=80.0,
            finished=frozenset({"gpu1"}),
            first=True,
            met=3,
            restarted_by=ends.worker_failed("gpu1", Failure(rank=5, local_rank=1, signal="SIGSEGV")),
            runs_at=60.0,
            trains_at=61.0,
            hung_s=4.5,
            unseen=True,
            warnings=WARNINGS,
            weights=((4, 1.0), (4, 0.5)),
            snapshot=Chosen(
                round=3,
                step=90,
                world_size=8,
                sharded=True,
                lost=4,
                sources=(
                    SnapshotSource(
                        node_id="gpu1", address="x", port=7000, key="k", whole=True, ranks=HELD.ranks
                    ),
                ),
            ),
            notice=Notice(
                cause=Cause(kind=EndKind.CANCELLED, reason=ends.cancelled("an admin")), at=97.5, until=127.5
            ),
            end=end,
        ),
        nodes={"gpu0": node},
        seats=("gpu0", "gpu1"),
        drained=frozenset({"gpu0"}),
        last_call=False,
        waiting_since=11.0,
        bounds_since=12.0,
        joiners_since=13.0,
        unreachable=frozenset({("gpu1", "gpu0")}),
        failed_masters=1,
        quick=3,
        backoff_until=101.0,
        snapshots=SnapshotsKept(
            origin="0123456789abcdef",
            wanted=Stamp(round=3, step=80),
            undone=Stamp(round=3, step=90),
            undone_before=4,
        ),
        failed_rounds={"gpu0": 2},
        root_cause=RootCause(
            reason=ends.without_restart(ends.worker_failed("gpu0", failure), "permanent"),
            round=4,
            node_id="gpu0",
            failure=failure,
        ),
        records=(
            RoundRecord(
                number=2,
                job=1,
                world_size=3,
                ended_by="lost",
                reason=ends.departed(ReasonCode.AGENT_DIED),
                is_last=True,
                cost_restart=True,
                cost="2 steps lost",
                time={"waiting": 0.5},
            ),
        ),
        previous_outcome=GroupState.CANCELLED,
        cancellation=ends.cancelled("an admin at 10.0.0.9"),
        created_at=1.0,
        finished_at=100.0,
    )


def at_default(value: object) -> list[str]:
    """Fields of a dataclass, and of those in it, that tell nothing apart from a field that was not stored."""
    if not isinstance(value, Group | GroupSpec | Node | Round | End | RootCause):
        return []
    own = [f.name for f in fields(value) if getattr(value, f.name) == f.default]
    parts = [getattr(value, f.name) for f in fields(value)]
    return own + [name for part in parts for name in at_default(part)]


def test_every_field_comes_back_but_what_is_in_memory_only() -> None:
    group = full()
    assert at_default(group) == ["moved_at", "stall"], "a new field: give it a value in `full`"
    in_memory = ["heard_at", "disconnected_at", "stop_acked_at"]
    node = group.nodes["gpu0"]
    assert sorted(at_default(node)) == sorted(in_memory)
    kept = Kept()
    kept.take(None, group)
    assert kept.restored("g") == group
    ready = group.with_node(replace(node, phase=NodePhase.READY))
    heard = replace(ready.nodes["gpu0"], heard_at=1.0, disconnected_at=2.0, stop_acked_at=1.5)
    assert changes(ready, ready.with_node(heard)) == ({}, set())
    stored, _ = changes(None, ready.with_node(heard))
    assert not set(in_memory) & record_of(stored, "groups/g/nodes/gpu0").keys()
    restored = restore(stored, NOW).groups["g"].nodes["gpu0"]
    assert [getattr(restored, name) for name in in_memory] == [NOW, None, None]
    new = replace(group, round=None, nodes={}, job=3)  # the round of a job goes with it
    kept.take(group, new)
    assert kept.records.keys() == {"groups/g/group", "groups/g/rounds/000000000002"}
    assert kept.restored("g") == new


def test_groups_whose_names_begin_alike_are_apart() -> None:
    kept = Kept()
    groups = [replace(full(), group_id=group_id) for group_id in ("g", "g/nodes", "g%2Fnodes", "gg", "G")]
    for group in groups:
        kept.take(None, group)
    assert restore(kept.records, NOW).groups == {group.group_id: group for group in groups}
    for group in groups:
        own = {key for key in kept.records if key.startswith(group_prefix(group.group_id))}
        assert changes(group, None) == ({}, own)


# -- what a change costs -------------------------------------------------------------------------------------


def test_a_report_in_a_group_of_a_thousand_is_one_small_put() -> None:
    nodes = {
        f"gpu{n}": Node(
            node_id=f"gpu{n}",
            incarnation=f"{n:032x}",
            slots=8,
            address=f"10.0.{n >> 8}.{n & 255}",
            port=4000,
            labels={"rack": "r1", "zone": "b"},
            device={"gpu": "NVIDIA H200", "driver": "590.1"},
            heard_at=100.0,
        )
        for n in range(1_000)
    }
    spec = GroupSpec(min_nodes=1_000, max_nodes=1_000)
    group = Group(group_id="g", spec=spec, nodes=nodes, waiting_since=1.0, bounds_since=1.0)
    group = step(group, Tick(), 100.0).group
    assert group.state is GroupState.STARTING
    report = Report(node_id="gpu7", incarnation=f"{7:032x}", round=1, kind=ReportKind.STARTED, moved=Moved())
    puts, deletes = changes(group, step(group, report, 101.0).group)
    assert puts.keys() == {"groups/g/nodes/gpu7"}
    assert deletes == set()
    assert len(puts["groups/g/nodes/gpu7"]) < 1_024


# -- events --------------------------------------------------------------------------------------------------


def stored_event(number: int) -> Event:
    reason = node_joined(f"gpu{number}", number, "10.0.0.1")
    return Event(number=number, at="2026-11-21T10:00:00.000+00:00", reason=reason)


def test_events_come_back_in_order_and_those_without_their_group_are_skipped() -> None:
    events = [stored_event(number) for number in (12, 2, 100)]
    stored, _ = changes(None, full())
    stored |= {event_key("g", event.number): event_record(event) for event in events}
    stored |= {event_key("deleted", 1): event_record(stored_event(1))}
    found = restore(stored, NOW)
    assert found.groups.keys() == {"g"}
    assert found.events == {"g": [events[1], events[0], events[2]]}


# -- other versions ------------------------------------------------------------------------------------------

KEYS = [
    "groups/g/group",
    "groups/g/round",
    "groups/g/nodes/gpu0",
    "groups/g/events/000000000001",
    "groups/g/rounds/000000000002",
]


def all_records() -> dict[str, bytes]:
    stored, _ = changes(None, full())
    stored[KEYS[3]] = event_record(stored_event(1))
    assert sorted(stored) == sorted(KEYS)
    return stored


def edited(key: str, **news: object) -> dict[str, bytes]:
    """All records, of which one has these fields set; `...` takes a field out."""
    stored = all_records()
    record = {**record_of(stored, key), **news}
    return {**stored, key: encoded({k: v for k, v in record.items() if v is not ...})}


def refusal(stored: Mapping[str, bytes]) -> str:
    with pytest.raises(StorageError) as caught:
        restore(stored, NOW)
    return str(caught.value)


@pytest.mark.parametrize("key", KEYS)
def test_every_record_has_a_version_and_a_newer_one_is_named(key: str) -> None:
    assert record_of(all_records(), key)["v"] == records.VERSION == 3
    said = refusal(edited(key, v=4, node_id=["another", "shape"], round={}))
    assert f"record {key} has version 4, but this hetserver reads at most version 3" in said
    assert "upgrade hetserver, or name another store with --store" in said
    said = refusal(edited(key, v=2))
    assert f"record {key} is malformed (version 2 was never released)" in said


@pytest.mark.parametrize("key", KEYS)
def test_a_field_that_is_not_known_is_ignored_and_one_that_is_missing_has_its_default(key: str) -> None:
    assert restore(edited(key, favourite_colour="blue"), NOW) == restore(all_records(), NOW)
    node = restore(edited("groups/g/nodes/gpu0", labels=..., weight=...), NOW).groups["g"].nodes["gpu0"]
    assert (node.labels, node.weight) == ({}, None)


@pytest.mark.parametrize(
    ("key", "news", "why"),
    [
        ("groups/g/nodes/gpu0", {"slots": "4"}, "slots: Input should be a valid integer"),
        ("groups/g/nodes/gpu0", {"address": ...}, "address: it is missing"),
        ("groups/g/group", {"spec": {"min_nodes": 3, "max_nodes": 2}}, "max_nodes is 2, below min_nodes"),
        ("groups/g/group", {"group_id": "h"}, "it is about group 'h'"),
        ("groups/g/round", {"members": [{"node_id": "gpu0"}]}, "members.0.incarnation: it is missing"),
    ],
)
def test_a_malformed_record_says_where(key: str, news: dict[str, object], why: str) -> None:
    said = refusal(edited(key, **news))
    assert f"record {key} is malformed" in said
    assert why in said


@pytest.mark.parametrize(
    ("key", "says"),
    [
        *((key, f"the store has a record {key}, which no hetserver") for key in ("group", "groups/g", "x/g/group")),
        *((key, f"record {key} is malformed (this hetserver") for key in ("groups/g/nodes", "groups/g/a/b")),
        ("groups/g/round", "record groups/g/group is malformed (it is missing, but"),
    ],
)  # fmt: skip
def test_a_record_that_belongs_nowhere_is_named(key: str, says: str) -> None:
    assert says in refusal({key: all_records().get(key, b'{"v":3}')})
