"""Who keeps copies for whom of the parts of a sharded snapshot."""

from collections.abc import Mapping
from typing import Any

import pytest

from hetrdzv.core.commands import Drain
from hetrdzv.core.model import Group
from hetrdzv.core.snapshots.sources import map_backed_up_members, next_copy_order
from hetrdzv.core.snapshots.start_snapshot import newest_safe_snapshot
from hetrdzv.protocol.snapshots import RankPart, SnapshotId
from tests.core.snapshots.test_snapshots import NOTHING, Job, held


def keepers(group: Group) -> Mapping[str, str]:
    """The keeper of each member."""
    return {
        member.node_id: keeper
        for keeper, members in map_backed_up_members(group).items()
        for member in members
    }


def begun(*names: str, racks: Mapping[str, str] | None = None, **spec: Any) -> Job:
    """Nodes that run together, each with a worker."""
    job = Job(**spec)
    for name in names:
        job.join(name, snapshots=NOTHING, labels={"rack": racks[name]} if racks and name in racks else {})
    job.wait(30.0)
    job.started(*job.order)
    return job


def declare(job: Job, node_id: str, *ranks: int, step: int = 8, whole: bool = False) -> None:
    """A node has these ranks' parts of a step of the round that runs."""
    size = job.round.world_size
    mine = held(step, job.round.number, whole=whole, sharded=True, world_size=size, ranks=ranks)
    job.declare(node_id, job.holds(mine))


def leaves(job: Job, node_id: str, serves_s: float) -> None:
    """A drained node serves what it holds, for a while."""
    job.do(Drain(node_id))
    job.report(
        node_id,
        "parting",
        message="drained",
        snapshots=job.node(node_id).snapshots,
        serves_s=serves_s,
    )


@pytest.mark.parametrize(
    ("racks", "expected"),
    [
        ({"a": "1", "b": "1", "c": "2", "d": "2"}, {"a": "c", "b": "c", "c": "a", "d": "a"}),
        ({"a": "1", "b": "1", "c": "1", "d": "1"}, {"a": "b", "b": "c", "c": "d", "d": "a"}),
        ({"a": "1", "b": "1"}, {"a": "c", "b": "c", "c": "d", "d": "a"}),
    ],
)
def test_copies_are_kept_in_another_unit_where_there_is_one(
    racks: dict[str, str], expected: dict[str, str]
) -> None:
    job = begun("a", "b", "c", "d", racks=racks, min_nodes=4, max_nodes=4, unit="rack")
    assert keepers(job.group) == expected


def test_a_keeper_is_told_what_it_lacks_once_it_is_there() -> None:
    job = begun("a", "b", "c", min_nodes=3, max_nodes=3)
    declare(job, "b", 1)
    assert next_copy_order(job.group, job.node("b")) is None  # a has not said anything yet
    declare(job, "a", 0)
    copy = next_copy_order(job.group, job.node("b"))
    assert copy is not None
    assert copy.stamp == SnapshotId(round=1, step=8)
    assert (copy.source.node_id, copy.source.port, copy.source.key) == ("a", 7000, "secret")
    assert copy.source.ranks == (RankPart(rank=0, digest="d0"),)
    declare(job, "b", 0, 1)
    assert next_copy_order(job.group, job.node("b")) is None


def test_what_a_round_began_from_is_copied_where_it_lives_once() -> None:
    """A node that is lost before the round's own first snapshot would have cost everything."""
    job = begun("a", "b", min_nodes=2, max_nodes=3)
    declare(job, "a", 0, whole=True)
    declare(job, "b", 1, whole=True)
    held = {name: job.node(name).snapshots for name in "ab"}
    job.join("c", snapshots=job.holds())
    for name in "ab":
        job.join(name, snapshots=held[name])
    job.started(*job.order)
    assert job.began is not None
    assert job.began.step == 8
    copies = {name: next_copy_order(job.group, job.node(name)) for name in "abc"}
    lone = {"a": 0, "b": 1}
    for member, keeper in keepers(job.group).items():
        copy = copies[keeper]
        if member not in lone:
            assert copy is None
            continue
        assert copy is not None
        assert (copy.stamp, copy.source.node_id) == (SnapshotId(round=1, step=8), member)
        assert [part.rank for part in copy.source.ranks] == [lone[member]]


def test_what_a_node_that_has_left_alone_has_two_members_copy() -> None:
    job = begun("a", "b", "c", min_nodes=2, max_nodes=3)
    for rank, name in enumerate("abc"):
        declare(job, name, rank, whole=True)
    held = {name: job.node(name).snapshots for name in "abc"}
    leaves(job, "c", 30.0)
    for name in "ab":
        job.join(name, snapshots=held[name])
    job.wait(10.0)
    assert job.began is not None
    assert {source.node_id for source in job.began.sources} == {"a", "b", "c"}
    copies = {name: next_copy_order(job.group, job.node(name)) for name in "ab"}
    of_c = {name: copy for name, copy in copies.items() if copy is not None and copy.source.node_id == "c"}
    assert {name: copy.source.ranks[0].rank for name, copy in of_c.items()} == {"a": 2, "b": 2}
    safe = SnapshotId(round=1, step=8)
    assert [next_copy_order(job.group, job.node(name), safe) for name in "ab"] == [None, None]


def test_a_step_is_safe_once_its_shards_are_on_two_nodes() -> None:
    job = begun("a", "b", min_nodes=2, max_nodes=2)
    declare(job, "a", 0, whole=True)
    declare(job, "b", 1, whole=True)
    assert newest_safe_snapshot(job.group) is None
    declare(job, "b", 0, 1, whole=True)
    declare(job, "a", 0, 1, whole=True)
    safe = newest_safe_snapshot(job.group)
    assert safe is not None
    assert safe.stamp == SnapshotId(round=1, step=8)
