"""A round begins from the newest complete snapshot that the nodes of its job hold."""

from dataclasses import replace
from typing import Any

import pytest

from hetrdzv.core.commands import DeclareSnapshots, Leave
from hetrdzv.core.invariants import list_violations
from hetrdzv.core.rounds.transitions import MAX_GONE_NODES
from hetrdzv.core.snapshots.catalog import list_group_snapshots, list_missing_ranks
from hetrdzv.core.snapshots.sources import MAX_WHOLE_SOURCES_PER_MEMBER, select_sources
from hetrdzv.core.snapshots.start_snapshot import (
    is_snapshot_undone,
    newest_memory_snapshot,
    snapshot_warnings,
)
from hetrdzv.protocol.errors import NodeIdInUse, NotFound, StaleIncarnation, StaleRound
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.reasons.snapshots import (
    began_from_snapshot,
    lost_steps_text,
)
from hetrdzv.protocol.snapshots import (
    DiskSnapshot,
    HeldSnapshot,
    RankPart,
    SnapshotId,
    SnapshotInventory,
    SnapshotSource,
    SnapshotWriteFailure,
    StartSnapshot,
    UseSnapshotRequest,
)
from hetrdzv.protocol.texts.node_rank_lists import NO_NODES, NodeList, RankList
from tests.core.driver import Story, bare

NOTHING = SnapshotInventory(port=7000, key="secret")


def held(step: int, of: int = 1, **more: Any) -> HeldSnapshot:
    fields: dict[str, Any] = {"world_size": 2, "whole": True, "size": 10}
    ranks = tuple(RankPart(rank=rank, digest=f"d{rank}") for rank in more.pop("ranks", ()))
    return HeldSnapshot(round=of, step=step, ranks=ranks, **(fields | more))


class Job(Story):
    """Nodes a and b, which always run together and hold snapshots."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(**{"min_nodes": 2, "max_nodes": 2, "restart_wait_s": 0.0, **spec})
        self.held: dict[str, SnapshotInventory] = {}

    def begin(self, *names: str) -> "Job":
        for name in names or ("a", "b"):
            self.join(name, snapshots=NOTHING)
        self.run()
        return self

    def run(self) -> None:
        assert self.group.active_round is not None, self.why
        self.started(*self.order)

    @property
    def origin(self) -> str:
        assert self.group.snapshots is not None
        return self.group.snapshots.origin

    def holds(self, *held: HeldSnapshot, **more: Any) -> SnapshotInventory:
        return replace(NOTHING, held=held, **({"origin": self.origin} | more))

    def declare(self, node_id: str, inventory: SnapshotInventory) -> None:
        node = self.node(node_id)
        self.do(
            DeclareSnapshots(
                node_id=node_id, incarnation=node.incarnation, round=node.member_of, inventory=inventory
            )
        )

    def again(self, a: SnapshotInventory, b: SnapshotInventory | None = None, **failure: Any) -> None:
        self.failed("a", **failure)
        self.join("b", snapshots=b or a)
        self.join("a", snapshots=a)
        self.run()

    @property
    def began(self) -> StartSnapshot | None:
        return self.round.snapshot

    @property
    def step(self) -> int | None:
        return self.began.step if self.began is not None else None


# -- what is complete ------------------------------------------------------------------------------------------


def test_a_round_begins_from_the_newest_complete_snapshot_and_says_what_is_lost() -> None:
    job = Job().begin()
    assert job.began is None
    both = job.holds(held(90), held(100), reached=104)
    job.again(job.holds(held(90), held(100), held(110, whole=False), reached=103), both)
    assert (job.step, job.began and job.began.round, job.began and job.began.lost) == (100, 1, 4)
    part = "step 110 is incomplete: no node has the complete replicated state"
    event = bare(began_from_snapshot(2, SnapshotId(round=1, step=100), NodeList.of(["a", "b"]), 4, part))
    assert job.said("began_from_snapshot") == [event]
    assert job.events[-2].round == 2 or job.events[-1].round == 2
    start = job.start("a")
    assert start.origin == job.origin
    assert start.snapshot.sources[0] == SnapshotSource(
        node_id="a", address="10.0.0.1", port=7000, key="secret", whole=True
    )
    assert "secret" not in repr((job.group, job.events))


def test_a_sharded_snapshot_needs_the_part_of_every_rank() -> None:
    job = Job().begin()
    sharded = {"sharded": True}
    a, b = held(100, ranks=(0,), **sharded), held(100, ranks=(1,), whole=False, **sharded)
    job.again(job.holds(held(90), a, reached=100), job.holds(held(90)))
    assert job.step == 90
    (event,) = job.said("began_from_snapshot")
    gone = "step 100 is incomplete: shard missing of rank 1"
    assert event.data["lost"] == 10
    assert lost_steps_text(10, gone) in event.message
    job.again(job.holds(held(90), a), job.holds(held(90), b))
    assert job.step == 100
    start = job.start("b")
    sources = start.snapshot.sources
    assert [(one.node_id, [part.rank for part in one.ranks]) for one in sources] == [("b", [1]), ("a", [0])]


def test_what_is_missing_is_named() -> None:
    job = Job().begin()
    job.declare("a", job.holds(held(3, whole=False), held(2, sharded=True, world_size=9, ranks=(0, 2, 3, 8))))
    assert [one.missing for one in list_group_snapshots(job.group)] == [
        "no node has the complete replicated state",
        "shards missing of ranks 1 and 4 to 7",
    ]
    assert list_missing_ranks(set(), 100_000_000) == RankList(ranges=((0, 99_999_999),))
    assert list_missing_ranks({1, 3, 5, 7, 9, 11}, 13) == RankList(
        ranges=((0, 0), (2, 2), (4, 4), (6, 6), (8, 8)), more=2
    )


@pytest.mark.parametrize(
    ("rounds", "more", "began"),
    [
        ([[held(100)], [held(100), held(90, of=2)]], {}, (2, 90)),
        ([[held(100)]], {"origin": "other"}, None),
        ([[held(100)]], {"origin": ""}, None),
        ([[held(100)]], {"port": 0}, None),
        ([[held(100, of=2), held(200, of=2**40)]], {}, None),
    ],
    ids=["the newer round's", "another job's", "nobody's", "not served", "a later round's"],
)
def test_what_counts(
    rounds: list[list[HeldSnapshot]], more: dict[str, Any], began: tuple[int, int] | None
) -> None:
    job = Job().begin()
    for each in rounds:
        job.again(job.holds(*each, **more))
    assert (job.began and (job.began.round, job.began.step)) == began


def test_a_node_alone_needs_nobody_to_serve_its_own() -> None:
    job = Job(min_nodes=1, max_nodes=1).begin("a")
    job.failed("a")
    job.join("a", snapshots=job.holds(held(7, world_size=1), port=0))
    assert job.step == 7


def test_nodes_that_are_gone_or_leave_hold_nothing() -> None:
    job = Job(min_nodes=1, max_nodes=3, replace_wait_s=0.0).begin("a", "b", "c")
    job.declare("c", job.holds(held(100)))
    job.declare("a", job.holds(held(90)))
    assert [one.stamp.step for one in list_group_snapshots(job.group)] == [100, 90]
    job.leaving("c")
    assert [one.stamp.step for one in list_group_snapshots(job.group)] == [90]
    job.leave("c")
    job.join("a", snapshots=job.holds(held(80)))
    job.join("b", snapshots=job.holds(held(85)))
    assert job.order == ["a", "b"]
    assert job.step == 85
    job.run()
    job.lose("b")
    job.join("a", snapshots=job.holds(held(80)))
    job.wait(1.0)
    assert job.order == ["a"]
    assert job.step == 80


def parted(**spec: Any) -> Job:
    """A round of which b has left, and serves its part of what lives once for 30 s."""
    job = Job(min_nodes=1, replace_wait_s=0.0, **spec).begin()
    mine, parts = (job.holds(held(100, sharded=True, ranks=[rank]), reached=100) for rank in (0, 1))
    job.leaving("b")
    job.join("a", snapshots=mine)
    assert job.group.active_round is None, "b may yet say what it has"
    job.report("b", "parting", message="SIGTERM", snapshots=parts, serves_s=30.0)
    return job


def test_a_node_that_leaves_serves_what_only_it_has() -> None:
    job = parted()
    assert job.order == ["a"]
    assert (job.step, job.began and job.began.lost) == (100, 0)
    assert job.began is not None
    assert {source.node_id for source in job.began.sources} == {"a", "b"}
    assert job.node("b").is_gone
    assert (job.told("b").kind, job.told("b").code) == ("wait", "serves")
    assert list(list_violations(job.group)) == []
    job.run()
    job.failed("a")
    assert (job.told("b").kind, job.told("b").code) == ("wait", "serves")
    job.join("a", snapshots=job.holds(held(100, sharded=True, ranks=[0])))
    assert job.step == 100, "it is there yet"
    job.leave("b", "its agent got SIGTERM")
    assert job.told("b").kind == "exit"
    assert len(job.said("node_left")) == 1, "it had said goodbye before"
    job.run()
    job.failed("a")
    job.join("a", snapshots=job.holds(held(100, sharded=True, ranks=[0]), held(90, world_size=1)))
    assert job.step == 90, "it has said that it is gone"


def test_a_node_that_left_is_not_needed_once_the_others_have_something_newer() -> None:
    job = parted()
    job.run()
    job.declare("a", job.holds(held(100, sharded=True, ranks=[0]), held(101, 2, world_size=1, sharded=True)))
    assert job.told("b").kind == "wait", "that is not complete"
    job.declare("a", job.holds(held(101, 2, world_size=1, sharded=True, ranks=[0])))
    assert (job.told("b").kind, job.told("b").code) == ("exit", "left")
    job.leaving("a")
    assert (job.told("b").kind, job.told("b").code) == ("exit", "last"), "nobody goes on"


def test_however_many_leave_none_that_serves_is_forgotten() -> None:
    names = ["a", *(f"n{number}" for number in range(MAX_GONE_NODES + 6))]
    job = Job(min_nodes=1, max_nodes=len(names), replace_wait_s=0.0).begin(*names)
    rank = {member.node_id: member.rank_offset for member in job.round.members} if job.group.round else {}
    for name in names[1:]:
        job.leaving(name)
        parts = job.holds(held(100, sharded=True, ranks=[rank[name]], world_size=len(names)))
        job.report(name, "parting", snapshots=parts, serves_s=30.0)
    job.join("a", snapshots=job.holds(held(100, sharded=True, ranks=[rank["a"]], world_size=len(names))))
    job.tick()
    assert job.step == 100
    assert job.group.nodes.keys() == {*names}


@pytest.mark.parametrize("died", [False, True])
def test_what_it_serves_does_not_count_once_its_agent_is_gone(died: bool) -> None:
    job = parted()
    job.run()
    assert 0 < (job.deadline_in or 0) <= 30.0
    if died:
        job.do(Leave(node_id="b", incarnation=job.node("b").incarnation, died=True))
    else:
        job.wait(30.5)
    assert job.told("b").kind != "wait"
    job.failed("a")
    job.join("a", snapshots=job.holds(held(100, sharded=True, ranks=[0]), held(90, world_size=1)))
    assert job.step == 90


# -- which job -------------------------------------------------------------------------------------------------


def test_a_new_job_forgets_all_and_takes_nothing_of_the_old_one() -> None:
    job = Job().begin()
    left = job.holds(held(100))
    job.succeeded("a", "b")
    assert job.group.state == "succeeded"
    job.leave("a")
    job.leave("b")
    job.join("a", inc="a-2", snapshots=left)
    job.join("b", inc="b-2", snapshots=left)
    assert job.group.job == 2
    assert job.began is None
    assert job.origin != left.origin
    job.run()
    job.again(left, job.holds(held(3, of=2)))
    assert job.step == 3, "the copies of the old job stay where they are"


def test_a_server_that_has_forgotten_a_job_takes_its_name_from_who_has_run_it() -> None:
    """Else rounds of one number could be of two jobs: leftovers are not taken."""
    job = Job()
    left = replace(NOTHING, origin="forgotten", held=(held(900),))
    job.join("a", snapshots=left)
    job.join("b", snapshots=NOTHING)
    job.run()
    job.again(left, job.holds(held(3)))
    assert job.step == 3
    job = Job()
    job.join("a", after=7, snapshots=replace(NOTHING, origin="before", held=(held(900, of=6),)))
    job.join("b", snapshots=NOTHING)
    assert (job.origin, job.step) == ("before", 900)


# -- what cannot be loaded, and what a person chooses ------------------------------------------------------------


def gives_up(job: Job, node_id: str, mine: SnapshotInventory, others: SnapshotInventory) -> None:
    """The workers of a node cannot load what they should; it stops them, and the others come as they do."""
    job.join(node_id, snapshots=mine)
    other = "b" if node_id == "a" else "a"
    job.join(other, snapshots=others)
    job.run()


def test_what_a_node_cannot_load_from_others_either_does_not_count() -> None:
    job = Job().begin()
    copies = job.holds(held(90), held(100))
    job.again(copies)
    only_older = replace(copies, held=(held(90),))
    gives_up(job, "b", only_older, copies)
    assert job.step == 100, "its own copy was bad, that of a may be good"
    start = job.start("b")
    assert [one.node_id for one in start.snapshot.sources] == ["a"]
    refuses = replace(only_older, refused=(SnapshotId(round=1, step=100),))
    gives_up(job, "b", refuses, copies)
    assert job.step == 90
    only = job.holds(held(100))
    job.again(only, replace(only, held=(), refused=refuses.refused))
    assert job.began is None, "nobody can load it: nothing is better"
    assert job.group.restarts == 2


def test_a_person_chooses_and_newer_ones_are_undone() -> None:
    job = Job(max_restarts=9).begin()
    copies = job.holds(held(90), held(100))
    for name in "ab":
        job.declare(name, copies)
    job.do(UseSnapshotRequest(step=90))
    job.do(UseSnapshotRequest(step=90))
    assert job.said("snapshot_wanted") == [ReasonCode.SNAPSHOT_WANTED.reason(step=90, of_round=1)]
    job.again(copies)
    assert job.step == 90
    assert job.group.snapshots is not None
    assert job.group.snapshots.wanted is None
    stamps = [SnapshotId(round=1, step=step) for step in (100, 90)]
    assert [is_snapshot_undone(job.group.snapshots, stamp) for stamp in stamps] == [True, False]
    job.again(copies, message="A: 1")
    assert job.step == 90, "the choice holds for later rounds, too"
    job.again(job.holds(held(90), held(100), held(91, of=3)), message="A: 1")
    assert job.step == 91, "what was made since counts"
    job.do(UseSnapshotRequest(step=100))
    job.again(copies, message="B: 1")
    assert job.step == 100
    job.again(copies, message="B: 1")
    assert job.step == 100


def test_what_is_not_there_cannot_be_chosen() -> None:
    job = Job().begin()
    with pytest.raises(NotFound, match="no complete snapshot of step 5; there is none"):
        job.do(UseSnapshotRequest(step=5))
    job.declare("a", job.holds(held(90), held(100), held(5, whole=False)))
    with pytest.raises(NotFound, match="step 5; there are those of step 100, 90"):
        job.do(UseSnapshotRequest(step=5))


def test_a_member_is_told_a_few_copies_and_the_parts_of_its_ranks() -> None:
    job = Job(min_nodes=12, max_nodes=12)
    names = [f"n{number:02}" for number in range(12)]
    for name in names:
        job.join(name, snapshots=NOTHING)
    job.run()
    job.failed(names[0])
    for rank, name in reversed(list(enumerate(names))):
        job.join(name, snapshots=job.holds(held(5, world_size=12, whole=rank != 3, ranks=(rank,))))
    asked: list[str] = []
    for place, member in enumerate(job.round.members):
        sources = select_sources(job.began, member).sources if job.began is not None else ()
        assert sources[0].node_id == member.node_id
        assert sum(one.whole for one in sources) in (
            MAX_WHOLE_SOURCES_PER_MEMBER,
            MAX_WHOLE_SOURCES_PER_MEMBER + 1,
        )
        parts = [(one.node_id, part.rank) for one in sources for part in one.ranks]
        assert (member.node_id, place) in parts
        asked += [one.node_id for one in sources[1:]]
    assert max(map(asked.count, names)) <= MAX_WHOLE_SOURCES_PER_MEMBER + 2, (
        "all are asked about equally often"
    )
    smaller = replace(job.round.members[0], node_id="new", slots=2, rank_offset=2)
    parts = (
        [(one.node_id, part.rank) for one in select_sources(job.began, smaller).sources for part in one.ranks]
        if job.began is not None
        else []
    )
    assert {("n02", 2), ("n03", 3)} <= set(parts)


def test_only_members_of_the_running_round_declare() -> None:
    job = Job().begin()
    with pytest.raises(StaleIncarnation):
        job.do(DeclareSnapshots(node_id="a", incarnation="x", round=1, inventory=NOTHING))
    with pytest.raises(StaleRound):
        job.do(DeclareSnapshots(node_id="a", incarnation="a-1", round=2, inventory=NOTHING))
    job.failed("a")
    with pytest.raises(StaleRound):
        job.do(DeclareSnapshots(node_id="a", incarnation="a-1", round=1, inventory=NOTHING))
    with pytest.raises(NodeIdInUse):
        job.join("a", inc="other", snapshots=NOTHING)


# -- on disk ---------------------------------------------------------------------------------------------------


def on_disk(step: int, of: int = 9, job: str = "earlier", written_at: int = 0) -> DiskSnapshot:
    return DiskSnapshot(round=of, step=step, origin=job, written_at=written_at, world_size=4, size=10)


def test_a_new_job_begins_from_what_is_on_disk() -> None:
    job = Job()
    job.join("a", snapshots=replace(NOTHING, on_disk=(on_disk(300), on_disk(200))))
    job.join("b", snapshots=NOTHING)  # it has not looked lately
    job.run()
    assert job.began == StartSnapshot(round=9, step=300, world_size=4, lost=0, on_disk=True, origin="earlier")
    assert job.said("began_from_snapshot") == [
        bare(
            began_from_snapshot(
                1, SnapshotId(round=9, step=300, origin="earlier"), NO_NODES, 0, None, on_disk=True
            )
        )
    ]
    for name in ("a", "b"):
        start = job.start(name)
        assert start.snapshot == job.began
    assert not list(list_violations(job.group))


def test_what_another_job_has_on_disk_is_older_than_anything_of_this_one() -> None:
    """A job that was begun anew in the same directory: neither its steps nor its rounds have come as far."""
    job = Job(max_restarts=9).begin()
    other = on_disk(1200, of=7, written_at=9)
    job.again(job.holds(held(4), on_disk=(other,), reached=4))
    assert job.began is not None
    assert (job.began.step, job.began.on_disk, job.began.lost) == (4, False, 0)
    job.again(replace(job.holds(reached=6), on_disk=(other, on_disk(5, of=2, job=job.origin))))
    assert (job.began.step, job.began.on_disk, job.began.lost) == (5, True, 1)
    assert [one.stamp.step for one in list_group_snapshots(job.group)] == [5, 1200]
    job.again(replace(job.holds(reached=6), on_disk=(other,)))
    assert (job.began.step, job.began.lost) == (1200, 6), "it did not begin from there"
    job.again(replace(job.holds(reached=1203), on_disk=(other,)))
    assert (job.began.step, job.began.lost) == (1200, 3)


def test_what_cannot_be_loaded_of_another_job_says_nothing_about_this_one() -> None:
    job = Job().begin()
    refuses = (SnapshotId(round=1, step=90, origin="earlier"),)
    job.again(replace(job.holds(held(90)), refused=refuses, on_disk=(on_disk(90, of=1),)))
    assert [(one.stamp.origin, not one.missing) for one in list_group_snapshots(job.group)] == [
        (None, True),
        ("earlier", False),
    ]
    assert job.step == 90


# -- what is lost ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comes", "has", "data"),
    [
        ("cd", "disk", {"step": 230, "lost": None}),
        ("cd", "nothing", {"step": None, "lost": None}),
        ("ab", "memory", {"step": 236, "lost": 4}),
    ],
)
def test_how_many_steps_are_lost_is_said_only_where_somebody_knows(
    comes: str, has: str, data: dict[str, int | None]
) -> None:
    """The next agent of a node may know how far it came."""
    job = Job().begin()
    job.declare("a", job.holds(held(236)))
    job.lose("a")
    job.lose("b")
    inventory = {
        "disk": replace(NOTHING, on_disk=(on_disk(230, of=1, job=job.origin),)),
        "memory": job.holds(held(236), reached=240),
    }.get(has, NOTHING)
    for name, mine in zip(comes, (inventory, NOTHING), strict=True):
        job.join(name, inc=f"{name}-2", snapshots=mine)
    job.wait(job.group.spec.replace_wait_s)
    job.run()
    (event,) = job.said("began_from_snapshot")
    assert {name: event.data.get(name) for name in data} == data


def test_the_disk_counts_where_memory_has_nothing_newer() -> None:
    job = Job().begin()
    disk = (on_disk(100, of=1, job=job.origin), on_disk(80, of=1, job=job.origin))
    job.again(job.holds(held(100), on_disk=disk))
    assert job.began is not None
    assert (job.began.step, job.began.on_disk) == (100, False)
    job.again(job.holds(held(90), on_disk=disk))
    assert (job.began.step, job.began.on_disk) == (100, True)
    assert [(one.stamp.step, one.on_disk is not None) for one in list_group_snapshots(job.group)] == [
        (100, True),
        (90, False),
        (80, True),
    ]


def test_what_one_other_node_has_is_no_reason_for_the_only_member_to_drop_its_own() -> None:
    job = Job(min_nodes=1, max_nodes=1).begin("a")
    lone = {"sharded": True, "world_size": 1, "ranks": (0,)}
    job.join("b", snapshots=job.holds(held(100, **lone)))
    job.declare("a", job.holds(held(90, **lone)))
    assert newest_memory_snapshot(job.group) == SnapshotId(round=1, step=90)
    job.declare("a", job.holds(held(90, **lone), held(100, **lone)))
    assert newest_memory_snapshot(job.group) == SnapshotId(round=1, step=100)


def test_workers_that_take_none_are_said_once_a_round_and_shown_until_they_do() -> None:
    job = Job().begin()
    current = job.round
    for node_id in ("a", "b"):
        job.declare(node_id, replace(job.holds(held(90)), disabled_reason=f"{node_id} needs 5 MB"))
    why = "a needs 5 MB"
    assert snapshot_warnings(job.group, current) == (
        ReasonCode.SNAPSHOTS_DISABLED.reason("a", "b", quote=why),
    )
    job.declare("a", job.holds(held(95)))
    job.declare("a", replace(job.holds(held(100)), disabled_reason="a needs 5 MB"))
    assert job.said("snapshots_disabled") == [ReasonCode.SNAPSHOTS_DISABLED.reason("a", quote=why)]
    for node_id in ("a", "b"):
        job.declare(node_id, job.holds(held(105)))
    assert snapshot_warnings(job.group, current) == ()


def test_what_could_not_be_written_is_said_until_one_is() -> None:
    job = Job().begin()
    current = job.round
    lack = SnapshotWriteFailure(stamp=SnapshotId(round=1, step=90), why="No space left on device")

    def not_on_disk(*nodes: str, step: int) -> Reason:
        return ReasonCode.SNAPSHOT_NOT_WRITTEN.reason(*nodes, step=step, of_round=1, quote=lack.why)

    said = not_on_disk("a", step=90)
    job.declare("a", replace(job.holds(held(90)), not_written=lack))
    assert snapshot_warnings(job.group, current) == (said,)
    later = replace(lack, stamp=SnapshotId(round=1, step=95))
    job.declare("a", replace(job.holds(held(95)), not_written=later))
    assert snapshot_warnings(job.group, current) == (not_on_disk("a", step=95),)
    job.declare("b", replace(job.holds(held(95)), not_written=lack))
    both = not_on_disk("a", "b", step=95)
    assert snapshot_warnings(job.group, current) == (both,)
    assert job.said("snapshot_not_written") == [said], "the warning tells of each, the history of the first"
    for node_id in ("a", "b"):
        job.declare(node_id, job.holds(held(100)))
    assert snapshot_warnings(job.group, current) == ()
