"""What all nodes hold is counted along as they say it, and comes out as if it had been looked at as a whole."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hetrdzv.core.model import Group, Member, Node, Round
from hetrdzv.core.snapshots import tally as counting
from hetrdzv.core.snapshots.complete import gathered_for, is_copied
from hetrdzv.core.snapshots.tally import COUNTED_ANEW_FOR, Tally
from hetrdzv.protocol.rooms.snapshots import Held, Holdings, Kept, RankPart, SnapshotsReply, Stamp
from hetrdzv.protocol.settings import GroupSpec


def group_of(nodes: int, slots: int = 1) -> Group:
    """A group that runs round 3 on so many nodes."""
    members = tuple(
        Member(f"n{place}", "i", place, place * slots, slots, "x", 1, 0, "r", place * slots, nodes * slots)
        for place in range(nodes)
    )
    return Group(
        group_id="g",
        spec=GroupSpec(),
        last_round=3,
        nodes={
            member.node_id: Node(
                node_id=member.node_id, incarnation="i", slots=slots, address="x", port=1, member_of=3
            )
            for member in members
        },
        round=Round(number=3, members=members, restart_count=0, formed_at=0.0),
        snapshots=Kept(origin="o"),
    )


def says(group: Group, node_id: str, *held: Held, **more: Any) -> Group:
    holdings = Holdings(origin="o", port=1, held=held, **more)
    return group.with_node(replace(group.nodes[node_id], snapshots=holdings))


def part(step: int, nodes: int, node: int, slots: int = 1, **more: Any) -> Held:
    """What a node has of a sharded snapshot: its own parts, and copies of those of another one."""
    own = range(node * slots, (node + 1) * slots)
    others = (
        range((node - 1) % nodes * slots, ((node - 1) % nodes + 1) * slots)
        if more.pop("copies", True)
        else ()
    )
    ranks = tuple(RankPart(rank=rank, digest="d") for rank in sorted({*own, *others}))
    fields: dict[str, Any] = {"whole": True, "sharded": True} | more
    return Held(round=3, step=step, world_size=nodes * slots, ranks=ranks, **fields)


def looked_at(group: Group) -> Stamp | None:
    """The newest complete snapshot that outlives any node, with a look at all nodes."""
    found = gathered_for(group, "o", list(group.nodes), group.last_round)
    alone = len(group.nodes) == 1
    return next((one.stamp for one in found if one.lack is None and (alone or is_copied(one))), None)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Sequence[int]:
    """How many nodes each look at all of them looks at."""
    seen: list[int] = []
    look: Callable[..., Any] = counting.gathered_for

    def counted(group: Group, *rest: Any) -> Any:
        seen.append(len(group.nodes))
        return look(group, *rest)

    monkeypatch.setattr(counting, "gathered_for", counted)
    return seen


def test_large_groups_are_looked_at_once_however_much_their_nodes_say(looks: Sequence[int]) -> None:
    nodes, slots = 1_000, 8
    group = group_of(nodes, slots)
    tally = Tally(group)
    replies: list[SnapshotsReply] = []
    kept: dict[int, tuple[Held, ...]] = {}
    for step in (8, 16, 24):
        for node in range(nodes):
            kept[node] = (*kept.get(node, ())[-2:], part(step, nodes, node, slots))
            group = says(group, f"n{node}", *kept[node])
            replies.append(tally.said(group, group.nodes[f"n{node}"]))
    assert len(looks) == 1
    assert [replies[turn * nodes - 1].complete for turn in (1, 2, 3)] == [
        Stamp(round=3, step=step) for step in (8, 16, 24)
    ]
    assert {reply.complete for reply in replies[nodes : 2 * nodes - 1]} == {Stamp(round=3, step=8)}
    assert replies[-1] == SnapshotsReply(complete=looked_at(group))


def test_a_node_that_goes_to_and_fro_costs_itself(looks: Sequence[int]) -> None:
    """What it has dropped may have been the last copy, which takes a look at all to know."""
    nodes = 640
    group = group_of(nodes)
    tally = Tally(group)
    whole = Held(round=3, step=5, world_size=nodes, whole=True)
    for _ in range(nodes):
        for held in ((whole,), ()):
            group = says(group, "n1", *held)
            reply = tally.said(group, group.nodes["n1"])
            assert reply.complete in (None, looked_at(group)), "unknown is said as such"
    assert len(looks) <= 2 * COUNTED_ANEW_FOR + 2


@pytest.mark.parametrize("differ", ["a", "aaaab"], ids=["", "values differ"])
@pytest.mark.parametrize("seed", range(20))
def test_it_is_as_if_all_were_looked_at(seed: int, differ: str) -> None:
    dice = random.Random(seed)
    nodes = dice.choice((1, 2, 3, 5))
    group = group_of(nodes)
    tally = Tally(group)
    for _ in range(80):
        node = dice.randrange(nodes)
        held = tuple(
            part(
                step,
                nodes,
                node,
                whole=dice.random() < 0.7,
                sharded=bool(step % 2),
                copies=dice.random() < 0.8,
                values={"v": dice.choice(differ)},
            )
            for step in sorted(dice.sample(range(6), dice.randint(0, 3)))
        )
        group = says(group, f"n{node}", *held)
        reply = tally.said(group, group.nodes[f"n{node}"])
        if differ == "a":
            assert reply.complete == looked_at(group)
        elif (
            reply.complete is not None
        ):  # values that were made alike again are seen with the next look at all
            complete = [one.stamp for one in gathered_for(group, "o", list(group.nodes), 3) if not one.lack]
            assert reply.complete in complete
    assert Tally(group).said(group, group.nodes["n0"]).complete == looked_at(group)
