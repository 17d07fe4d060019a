"""Which nodes, in which order, with which offsets (rule 4)."""

import re
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

import pytest

from hetrdzv.core.model import Node
from hetrdzv.core.selection.rank_order import assign_ranks
from hetrdzv.core.selection.select import Selection, select_nodes
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.reasons import waiting
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.settings import SETTINGS, GroupSpec, allows_master, parse_rank_order
from tests.core.driver import Story
from tests.core.script import play
from tests.support.every_set import group_of


def node(node_id: str, slots: int = 1, address: str = "10.0.0.1", role: str = "default") -> Node:
    return Node(
        node_id=node_id, incarnation=f"{node_id}-1", slots=slots, address=address, port=4000, role=role
    )


def nodes(*node_ids: str) -> list[Node]:
    return [node(node_id) for node_id in node_ids]


def place(
    spec: GroupSpec,
    ready: list[Node],
    sticky_order: tuple[str, ...] = (),
    last: tuple[str, ...] = (),
    unreachable: AbstractSet[tuple[str, str]] = frozenset(),
) -> tuple[Sequence[Member], Sequence[str]]:
    """Select and order the nodes of the next round; one without members where none can form."""
    group = group_of(spec, dict.fromkeys(last, 1), sticky_order=sticky_order, unreachable=unreachable)
    answer = select_nodes(group, ready)
    if not isinstance(answer, Selection):
        return (), ()
    return assign_ranks(group, answer.nodes, answer.master)


def order(*args: object, min_nodes: int = 1, max_nodes: int | None = None, **kwargs: object) -> list[str]:
    spec = GroupSpec(min_nodes=min_nodes, max_nodes=max_nodes)
    return [member.node_id for member in place(spec, *args, **kwargs)[0]]  # type: ignore[arg-type]


def test_returning_node_gets_its_place_back() -> None:
    _, sticky_order = place(GroupSpec(), nodes("a", "c"), ("a", "b", "c"), ("a", "b", "c"))
    assert sticky_order == ("a", "b", "c")
    assert order(nodes("a", "b", "c"), sticky_order, ("a", "c")) == ["a", "b", "c"]


def test_a_spare_takes_part_where_that_makes_a_master_serve() -> None:
    apart = {("a", "b"), ("b", "a")}
    spec = GroupSpec(min_nodes=2, max_nodes=2)
    members, sticky_order = place(spec, nodes("a", "b", "c"), ("a", "b"), ("a", "b"), apart)
    assert [m.node_id for m in members] == ["a", "c"]
    assert sticky_order == ("a", "c")
    spec = GroupSpec(min_nodes=3, max_nodes=3)
    members, sticky_order = place(
        spec, nodes("a", "b", "c", "d"), ("a", "b", "c"), ("a", "b", "c"), {*apart, ("a", "c"), ("b", "c")}
    )
    assert [m.node_id for m in members] == ["a", "d", "c"]


# -- in a group ----------------------------------------------------------------------------------------------

RACKS = "; ".join(f"join n{number} 2 labels={{'rack':'{rack}'}}" for number, rack in enumerate("aabb", 1))

CASES = {
    "a node with a loopback address is told to exit": """
        group min_nodes=2; join a address='127.0.0.1'; join b address='10.0.0.2'; told a = exit rejected 1
        why = too_few_nodes; join a after=0; told a = exit rejected 1
        leave a; join a inc='a-2' address='10.0.0.1'; wait 10; order = a b""",
    "as a joiner it harms nobody": """
        running a b; join c address='127.0.0.1'; told c = exit rejected 1; wait 20; ended = None""",
    "a node of another host does not end a local round": """
        group last_call_s=1; join a address='127.0.0.1'; wait 1; join b; wait 20; ended = None
        left b = cannot_reach_master b""",
    "labels and weights are taken anew at every join": """
        group min_nodes=2 max_nodes=2 rank_order='topology:rack'
        join n1 labels={'rack':'1'}; join n2 labels={'rack':'2'}; order = n1 n2
        restart; join n1 labels={'rack':'3'} weight=2.0; join n2 labels={'rack':'2'}; order = n2 n1; weight n1 = 2.0
        restart; join n1 labels={'rack':'3'}; join n1 labels={'rack':'1'}; join n2 labels={'rack':'2'}
        order = n1 n2""",
    "the weights of a node are those of its newest join": """
        running a b; shares a = none; restart; join a weight=2.0; join b; shares a = 1:2 1:1; shares b = 1:2 1:1
        restart; join a weight=None; join b; shares a = none""",
    "a weight counts for each slot, and nodes without have 1": """
        group min_nodes=3 max_nodes=3; join a 2 weight=2.0; join b 3; join c; shares a = 2:2 4:1""",
    "a node that waits may change its weight, and weight 1 is one": """
        group min_nodes=2 max_nodes=2; join a weight=4.0; join a weight=1.0; join b; shares a = 2:1""",
    "a group waits for a node that may be master": """
        group min_nodes=2 master='public=yes' join_timeout_s=60; joins n1 n2; wait 20; why = no_allowed_master n1 n2
        until = 40; join n3 labels={'public':'yes'}; why = last_call n1 n2 n3; wait 10; order = n3 n1 n2""",
    "and fails in the end": """
        group master='n7' join_timeout_s=60; join n1; wait 60; state = failed; cause = join_timeout""",
    "a lost master is waited for if nobody else may": """
        running n1 n2 min_nodes=1 master='n2' join_timeout_s=60; order = n2 n1; lose n2; join n1
        why = no_allowed_master n1; join n2 inc='n2-2'; wait 1; order = n2 n1""",
    # -- worlds
    "a spare says which world size it would make": """
        group last_call_s=1 world_size_multiple=4; join a 4; join b 4; join c 3; obey; world = 8
        left c = world_not_larger c""",
    "or that the world may be no larger": """
        group last_call_s=1 max_world_size=4; join a 4; join b 4; obey; left b = world_not_larger b""",
    "or that there are enough nodes": """
        group last_call_s=1 world_size_multiple=4 max_nodes=1; join a 4; join b 4; obey; left b = max_nodes b""",
    "a joiner ends a round only where the world grows": """
        group last_call_s=1 world_size_multiple=4 max_nodes=2; join a 4; join b 2; join c 2; join d 4; obey
        world = 8; order = a d; join e 3; obey; last_round = 1; join f 8; obey; world = 12; order = a f
        said round_ended = 1""",
    "a smaller world waits for a replacement": """
        group last_call_s=1 world_size_multiple=4 replace_wait_s=5; join a 4; join b 4; join c 3; obey
        lose b; join a 4; why = replacement_wait a c; join e 4; world = 8; order = a e""",
    "growth pauses, and a loss does not wait": """
        group last_call_s=1 growth_pause_s=20 lease_s=100; join a 4; wait 1; started a; join b 4
        left b = joins_next_round b; due = 20; wait 19; world = 4; obey; world = 8; lose b; obey; world = 4""",
    "too few slots": """
        group join_timeout_s=20 min_world_size=8 max_world_size=16 world_size_multiple=4; join a 4; join b 2
        why = too_few_slots; data missing = 2; wait 21; cause = join_timeout""",
    "no set of a size": """
        group join_timeout_s=20 world_size_multiple=4; join a 3; join b 3; join c 3; why = too_few_slots
        data missing = 0; wait 21; cause = join_timeout""",
    "no number of such nodes": """
        group join_timeout_s=20 max_world_size=8 world_size_multiple=4; join a 3; why = too_few_slots
        wait 21; cause = impossible_world""",
    "nor with so few nodes": """
        group join_timeout_s=20 world_size_multiple=64 max_nodes=2; join a 15; join b 3; join c 13
        data missing = 0; wait 21; cause = impossible_world""",
    "more slots, not more nodes": """
        group join_timeout_s=20 min_world_size=12 max_world_size=12 max_nodes=3; join a 5; join b 3
        data missing = 4""",
    "first more nodes": """
        group min_world_size=8 min_nodes=2; join a 4; why = too_few_nodes; data missing = 1""",
    "who gave up leaves too few slots": """
        group last_call_s=1 world_size_multiple=8; join a 4; join b 2; join c 2; obey
        failed a final=True; join b 2; join c 2; leave a; state = failed; cause = worker_failed a""",
    # -- units
    "what is left of a rack is used as well": f"""
        group unit='rack' max_nodes=3 last_call_s=1; {RACKS}; wait 1; started n1 n2; order = n1 n2
        lose n2; join n1; order = n1 n3 n4; started n1 n3 n4
        join n2 inc='n2-2' labels={{'rack':'a'}}; left n2 = max_nodes n2""",
    "a rack joins a running round as a whole": """
        group unit='rack' max_nodes=4 last_call_s=1; join n1 labels={'rack':'a'}; wait 1; started n1
        join n2 labels={'rack':'b'}; join n3 labels={'rack':'b'}; wait 1; ended = joined; join n1
        order = n1 n2 n3""",
    "racks that never fit are waited for": """
        group unit='rack' max_nodes=1; join n1 labels={'rack':'a'}; join n2 labels={'rack':'a'}
        why = too_few_slots""",
    "nodes without the label are units by themselves": """
        group unit='rack' min_nodes=3 max_nodes=3; join n1 labels={'rack':'a'}; joins n2 n3; wait 10
        order = n1 n2 n3""",
}


@pytest.mark.parametrize("case", CASES)
def test_selections_of_a_group(case: str) -> None:
    play(CASES[case])


@pytest.mark.parametrize(
    ("spec", "labels", "lacking"),
    [
        ({"rank_order": "topology:zone,rack"}, ["zr", "z", ""], [("zone", ["n2"]), ("rack", ["n1", "n2"])]),
        ({"unit": "rack"}, ["r", "z"], [("rack", ["n1"])]),
        ({}, ["", "zr"], []),
    ],
)
def test_what_an_order_goes_by_and_nodes_lack_is_a_warning(
    spec: dict[str, str], labels: list[str], lacking: list[tuple[str, list[str]]]
) -> None:
    story = Story(min_nodes=len(labels), max_nodes=len(labels), **spec)
    for number, names in enumerate(labels):
        story.join(f"n{number}", labels={{"z": "zone", "r": "rack"}[name]: "1" for name in names})
    story.wait(10)
    assert story.round.warnings == tuple(
        ReasonCode.NO_LABEL.reason(*names, label=label, setting=next(iter(spec))) for label, names in lacking
    )


@pytest.mark.parametrize(
    ("script", "node_id", "why"),
    [
        ("running a b max_nodes=2; join c", "c", lambda spec: ReasonCode.MAX_NODES.reason("c", max_nodes=2)),
        (
            CASES["a node of another host does not end a local round"],
            "b",
            lambda spec: ReasonCode.CANNOT_REACH_MASTER.reason("b", master="a", address="127.0.0.1"),
        ),
        (
            CASES["a spare says which world size it would make"],
            "c",
            lambda spec: ReasonCode.WORLD_NOT_LARGER.reason("c"),
        ),
    ],
)
def test_why_a_node_is_a_spare(script: str, node_id: str, why: Callable[[GroupSpec], Reason]) -> None:
    story = play(script)
    told = story.told(node_id).reason
    assert told == waiting.node_left_out(story.group.last_round, node_id, why(story.group.spec))


# -- what the settings can say -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "means"),
    [("sticky", ()), ("topology:rack", ("rack",)), ("topology:zone,rack 1", ("zone", "rack 1"))],
)
def test_orders(text: str, means: tuple[str, ...]) -> None:
    assert parse_rank_order(text) == means
    assert GroupSpec(rank_order=text).rank_order == text


MASTER, UNIT = "must be LABEL=VALUE or a node id", "must be the name of one label"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("rank_order", "stiky", "'stiky': must be sticky or topology:LABEL"),
        ("rank_order", "", "'': must be sticky"),
        ("rank_order", "topology:", "'topology:': must be"),
        ("rank_order", "topology:zone,", "must be sticky"),
        ("rank_order", "Topology:zone", "must be sticky"),
        ("rank_order", "topology:zone,zone", "'topology:zone,zone': names a label twice"),
        ("rank_order", "topology:1,2,3,4,5,6,7,8,9", "names 9 labels, but may name 8"),
        *(("master", text, MASTER) for text in ("", "=yes", "gpu 7", "a,b")),
        *(("unit", text, UNIT) for text in ("", "rack=1", "zone,rack")),
    ],
)
def test_settings_that_mean_nothing(name: str, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        SETTINGS[name].read(text)


def test_whom_a_master_rule_allows() -> None:
    for rule, labels, may in (
        ("public=yes", {"public": "yes"}, True),
        ("public=yes", {"public": "no"}, False),
        ("public=yes", {}, False),
        ("note=a=b", {"note": "a=b"}, True),
        ("public=", {"public": ""}, True),
        ("gpu7", {}, True),
        ("gpu70", {"gpu70": "gpu7"}, False),
    ):
        assert SETTINGS["master"].read(rule) == rule
        assert allows_master(rule, "gpu7", labels) is may
