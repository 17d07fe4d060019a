"""Nodes that come and go are set aside for a while; those whose workers fail again and again are taken last."""

from dataclasses import replace

from hetrdzv.core.health.conduct import MOST_KEPT, with_blame, with_departure
from hetrdzv.core.model import Conduct
from hetrdzv.protocol.facts import reasons
from hetrdzv.protocol.facts.events import NodeSetAside
from tests.core.driver import Story, running
from tests.core.explained import left_out

TIMES_S = [60.0, 120.0, 240.0, 480.0, 960.0, 1800.0, 1800.0]


def comes(story: Story, node_id: str, inc: int) -> None:
    """A node joins as another incarnation, and is taken in if it may be."""
    story.join(node_id, inc=f"{node_id}-{inc}")
    story.wait(story.group.spec.last_call_s + 0.1)
    rejoin(story)


def rejoin(story: Story) -> None:
    """All who have to, stop and start their workers."""
    for node in list(story.group.nodes.values()):
        if not node.gone and story.told(node.node_id).kind == "stop":
            story.join(node.node_id)
    story.wait(1.1)
    for node in list(story.group.nodes.values()):
        if node.phase == "starting":
            story.started(node.node_id)


def goes(story: Story, node_id: str) -> None:
    story.leave(node_id)
    if story.group.active_round is None:
        rejoin(story)


def flapping(**spec: object) -> Story:
    """b has left three rounds, and is here again."""
    story = running("a", "b", **{"min_nodes": 1, "lease_s": 50, **spec})
    for inc in range(2, 5):
        goes(story, "b")
        comes(story, "b", inc)
    return story


def test_a_node_that_comes_and_goes_is_kept_as_a_spare_for_a_while() -> None:
    story = flapping()
    assert story.order == ["a"]
    assert story.facts("node_set_aside") == [NodeSetAside(departures=3, for_s=60.0)]
    assert story.told("b").kind == "wait"
    aside = left_out(story, "b")
    assert aside == reasons.SetAside(
        group_id="g", node_id="b", times=3, until=story.group.conduct["b"].free_at
    )
    number = story.group.last_round
    story.wait(50)
    assert story.group.last_round == number
    story.wait(20)
    rejoin(story)
    assert story.order == ["a", "b"]


def test_it_stays_longer_each_time() -> None:
    story = flapping(lease_s=3600)
    for number, _ in enumerate(TIMES_S[1:], 5):
        while "b" not in story.order:
            story.pass_by(30)
            story.renew("a", "b")
            rejoin(story)
        goes(story, "b")
        comes(story, "b", number)
    aside = story.facts("node_set_aside")
    assert [one.for_s for one in aside if isinstance(one, NodeSetAside)] == TIMES_S


def test_a_node_that_stayed_is_trusted_again() -> None:
    story = running("a", "b", min_nodes=1, lease_s=700)
    for inc in range(2, 7):
        story.pass_by(601)
        goes(story, "b")
        comes(story, "b", inc)
    assert story.order == ["a", "b"]
    assert story.facts("node_set_aside") == []


def test_the_bounds_come_first() -> None:
    story = flapping(min_nodes=2)
    assert story.order == ["a", "b"]


def test_no_round_ends_only_to_put_another_node_in_its_place() -> None:
    story = Story(min_world_size=8, last_call_s=1.0, lease_s=600.0)
    conduct = {
        name: Conduct(departures=3, aside=True, free_at=story.now + left)
        for name, left in (("b", 500), ("z", 400))
    }
    story.group = replace(story.group, conduct=conduct)
    story.join("a", 4)
    story.join("b", 4)
    story.wait(1)
    story.started("a", "b")
    story.join("z", 8)
    story.wait(2)
    assert story.ended is None
    story.join("c", 4)
    story.wait(2)
    assert (story.order, story.ended) == (["a", "b"], None)
    story.join("d", 4)  # with it the world is larger, without b
    story.join("e", 4)
    story.wait(1)
    assert story.ended == "joined"
    story.joins("a", "b")
    assert story.order == ["a", "c", "d", "e"]  # c in b's place


def test_if_several_are_set_aside_only_as_many_as_needed_are_taken() -> None:
    story = running("a", "b", "c", min_nodes=1, lease_s=50)
    for inc in range(2, 5):
        for node_id in ("b", "c"):
            goes(story, node_id)
            comes(story, node_id, inc)
    assert story.order == ["a"]
    assert story.group.nodes.keys() == {"a", "b", "c"}
    story.leave("a")
    story.wait(2)
    assert story.order == ["b"]  # its time is over first


def test_undrain_lifts_it() -> None:
    story = flapping()
    story.undrain("b")
    assert len(story.facts("node_undrained")) == 1
    story.wait(1.1)
    rejoin(story)
    assert story.order == ["a", "b"]
    assert story.group.conduct == {}


def test_a_node_that_was_drained_did_not_just_go() -> None:
    story = running("a", "b", min_nodes=1, lease_s=50)
    for inc in range(2, 4):
        goes(story, "b")
        comes(story, "b", inc)
    story.drain("b")
    goes(story, "b")
    assert story.facts("node_set_aside") == []
    assert story.group.conduct["b"].departures == 2


def fails(story: Story, node_id: str) -> None:
    story.failed(node_id)
    rejoin(story)


def test_a_node_whose_workers_fail_again_and_again_is_replaced_by_a_spare() -> None:
    story = running("a", "b", max_nodes=2, max_restarts=9, restart_wait_s=0, lease_s=50)
    story.join("c")
    fails(story, "b")
    fails(story, "b")
    assert story.order == ["a", "b"]
    fails(story, "b")
    assert story.order == ["a", "c"]
    assert story.facts("node_set_aside") == [NodeSetAside(blamed=3)]
    assert left_out(story, "b") == reasons.TakenLast(group_id="g", node_id="b", failures=3)
    fails(story, "a")
    assert story.order == ["a", "c"]
    story.leave("c")
    rejoin(story)
    assert story.order == ["a", "b"]  # better than none


def test_it_is_taken_as_any_other_after_undrain() -> None:
    story = running("a", "b", max_nodes=2, max_restarts=9, restart_wait_s=0, lease_s=50)
    story.join("c")
    for _ in range(3):
        fails(story, "b")
    story.undrain("b")
    assert left_out(story, "b") == reasons.Full(max_nodes=2)


def test_failures_elsewhere_break_the_row() -> None:
    story = running("a", "b", max_nodes=2, max_restarts=9, restart_wait_s=0, lease_s=50)
    story.join("c")
    for node_id in "bbabb":
        fails(story, node_id)
    assert story.order == ["a", "b"]


def test_few_nodes_are_remembered() -> None:
    conduct: dict[str, Conduct] = {}
    for number in range(3 * MOST_KEPT):
        conduct = dict(with_departure(conduct, f"n{number}", number))
    assert len(conduct) == MOST_KEPT
    assert f"n{3 * MOST_KEPT - 1}" in conduct
    assert with_departure(conduct, "late", 5000.0).keys() == {"late"}


def test_of_nodes_that_failed_little_is_remembered_too() -> None:
    story = running("a")
    ended = story.group.round
    assert ended is not None
    conduct: dict[str, Conduct] = {}
    for number in range(2 * MOST_KEPT):
        conduct = dict(with_blame(conduct, ended, f"n{number}", 5000.0))
        assert conduct[f"n{number}"].blamed == 1
    assert len(conduct) == MOST_KEPT
