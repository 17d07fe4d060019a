"""Which nodes, in which order, with which offsets (rule 4)."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import permutations

from hetrdzv.core.model import Node
from hetrdzv.core.selection import order as ordering
from hetrdzv.core.selection.order import Past
from hetrdzv.core.selection.select import Selection, select
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.reasons import ends, waiting
from hetrdzv.protocol.settings import GroupSpec
from tests.core.driver import Story, running
from tests.core.explained import ready, waits_for


def node(node_id: str, slots: int = 1, address: str = "10.0.0.1", role: str = "default") -> Node:
    return Node(
        node_id=node_id, incarnation=f"{node_id}-1", slots=slots, address=address, port=4000, role=role
    )


def nodes(*node_ids: str) -> list[Node]:
    return [node(node_id) for node_id in node_ids]


def place(
    spec: GroupSpec,
    ready: list[Node],
    seats: tuple[str, ...] = (),
    last: tuple[str, ...] = (),
    unreachable: AbstractSet[tuple[str, str]] = frozenset(),
) -> tuple[Sequence[Member], Sequence[str]]:
    """Select and order the nodes of the next round; one without members where none can form."""
    past = Past(dict.fromkeys(last, 1), seats=seats, unreachable=unreachable)
    answer = select(spec, ready, past)
    if not isinstance(answer, Selection):
        return (), ()
    return ordering.place(spec, answer.nodes, past, answer.master)


def order(*args: object, min_nodes: int = 1, max_nodes: int | None = None, **kwargs: object) -> list[str]:
    spec = GroupSpec(min_nodes=min_nodes, max_nodes=max_nodes)
    return [member.node_id for member in place(spec, *args, **kwargs)[0]]  # type: ignore[arg-type]


def test_returning_node_gets_its_place_back() -> None:
    _, seats = place(GroupSpec(), nodes("a", "c"), ("a", "b", "c"), ("a", "b", "c"))
    assert seats == ("a", "b", "c")
    assert order(nodes("a", "b", "c"), seats, ("a", "c")) == ["a", "b", "c"]


def test_shunned_master_goes_behind() -> None:
    assert order(nodes("a", "b", "c"), unreachable={("c", "a")}) == ["b", "a", "c"]
    assert order(nodes("a", "b"), unreachable={("gone", "a")}) == ["a", "b"]
    assert order(nodes("a", "b"), unreachable={("a", "b"), ("b", "a")}, min_nodes=2) == []


def test_where_no_master_serves_all_the_largest_part_is_taken() -> None:
    broken = {(one, other) for one, other in permutations("abcd", 2) if "b" in (one, other)}
    assert order(nodes("a", "b", "c", "d"), unreachable=broken) == ["a", "c", "d"]
    assert order(nodes("a", "b", "c", "d"), unreachable=broken, min_nodes=4) == []
    halves = {(one, other) for one, other in permutations("abcd", 2) if (one in "ab") != (other in "ab")}
    assert order(nodes("a", "b", "c", "d"), unreachable=halves) == ["a", "b"]


def test_a_spare_takes_part_where_that_makes_a_master_serve() -> None:
    apart = {("a", "b"), ("b", "a")}
    spec = GroupSpec(min_nodes=2, max_nodes=2)
    members, seats = place(spec, nodes("a", "b", "c"), ("a", "b"), ("a", "b"), apart)
    assert [m.node_id for m in members] == ["a", "c"]
    assert seats == ("a", "c")
    spec = GroupSpec(min_nodes=3, max_nodes=3)
    members, seats = place(
        spec, nodes("a", "b", "c", "d"), ("a", "b", "c"), ("a", "b", "c"), {*apart, ("a", "c"), ("b", "c")}
    )
    assert [m.node_id for m in members] == ["a", "d", "c"]


def test_loopback_node_is_told_to_exit() -> None:
    story = Story(min_nodes=2)
    story.join("a", address="127.0.0.1")
    story.join("b", address="10.0.0.2")
    told = story.told("a")
    assert (told.kind, told.code, told.exit_code) == ("exit", "rejected", 1)
    assert told.reason == ends.bad_address("g", "a", "127.0.0.1")
    what = waits_for(story)
    assert what.code == "too_few_nodes"
    assert what == waiting.too_few(ready(["b"], 2), 1, until=what.until)
    assert story.join("a", after=0).code == "rejected"  # the same agent is not let in again
    story.leave("a")
    story.join("a", inc="a-2", address="10.0.0.1")
    story.wait(10)
    assert story.order == ["a", "b"]


def test_loopback_joiner_is_told_to_exit_and_harms_nobody() -> None:
    story = running("a", "b")
    assert story.join("c", address="127.0.0.1").code == "rejected"
    story.wait(20)
    assert story.ended is None


def test_node_of_another_host_does_not_end_a_local_round() -> None:
    story = Story(last_call_s=1)
    story.join("a", address="127.0.0.1")
    story.wait(1)
    told = story.join("b")
    story.wait(20)
    assert story.ended is None
    out_of_reach = waiting.out_of_reach("b", "a", "127.0.0.1", loopback=True)
    assert told.reason == waiting.left_out(1, "b", out_of_reach)
