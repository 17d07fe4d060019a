"""Who may join, who waits, who ends a round; old and doubled joins; drain and leave (rules 3c and 6)."""

import pytest

from hetrdzv.core.commands import Leave, Renew
from hetrdzv.protocol.errors import Difference, NodeIdInUse, Refused, SpecConflict, StaleIncarnation
from hetrdzv.protocol.reasons import ends, waiting
from hetrdzv.protocol.reasons.reason import ReasonCode
from tests.core.driver import LEASE_S, Story, bare, running
from tests.core.explained import left_out, waits_for


def test_joiners_come_in_one_batch_per_last_call() -> None:
    story = running("a", last_call_s=10)
    told = story.join("b")
    assert told.reason == waiting.left_out(1, "b", waiting.joins_next_round("b", story.now + 10))
    story.wait(6)
    story.join("c")
    story.wait(3.9)
    assert story.ended is None
    story.wait(0.1)
    assert story.ended == "joined"
    assert story.told("a").reason.nodes == ("b", "c")
    story.join("a")
    assert story.order == ["a", "b", "c"]
    assert story.group.restarts == 0


def test_joiner_beyond_the_maximum_is_a_spare() -> None:
    story = running("a", "b", max_nodes=2)
    told = story.join("c")
    assert told.kind == "wait"
    assert left_out(story, "c") == waiting.max_nodes("c", 2)
    story.wait(30)
    assert story.ended is None
    story.lose("b")
    story.join("a")
    assert story.order == ["a", "c"]


def test_no_joiner_once_a_member_has_succeeded() -> None:
    story = running("a", "b")
    story.join("c")
    story.succeeded("a")
    story.wait(30)
    assert story.ended is None
    assert left_out(story, "c") == waiting.spare(ReasonCode.OTHERS_SUCCEEDED, "c")


def test_suspect_joiner_ends_nothing_until_it_is_heard() -> None:
    story = running("a", last_call_s=10)
    story.join("b")
    story.wait(9.5)
    story.cut("b")
    story.wait(0.5)
    assert story.ended is None
    story.now += 0.1
    story.renew("b")
    assert story.ended == "joined"


def test_doubled_old_join_does_not_bring_the_old_port_back() -> None:
    story = running("a", "b")
    story.restart()
    story.join("a", port=5000)
    story.join("a", after=0, port=4000)
    assert story.node("a").port == 5000
    story.join("b")
    told = story.told("b")
    assert told.start is not None
    assert told.start.master.port == 5000
    story.lose("a")
    story.join("a", after=1, port=5000)
    assert story.node("a").phase == "lost"
    story.join("a", after=2, port=6000)
    assert (story.node("a").phase, story.node("a").port) == ("ready", 6000)


def test_doubled_join_of_a_replaced_agent_does_not_resurrect_it() -> None:
    story = Story(min_nodes=3)
    story.join("a", inc="old")
    story.cut("a")
    story.join("a", inc="new", port=5000)
    story.cut("a")
    with pytest.raises(StaleIncarnation, match="taken over"):
        story.join("a", inc="old")
    story.lose("a")
    with pytest.raises(StaleIncarnation, match="taken over"):
        story.join("a", inc="old")
    story.join("a", inc="newest")
    assert story.node("a").former == ("old", "new")


def test_node_id_in_use() -> None:
    story = Story(min_nodes=2)
    story.join("a", inc="one", address="10.0.0.7")
    before = story.group
    with pytest.raises(NodeIdInUse, match=r"10\.0\.0\.7"):
        story.join("a", inc="two")
    assert story.group is before
    story.now += LEASE_S
    with pytest.raises(NodeIdInUse):
        story.join("a", inc="two")
    story.now += 0.001  # expired, though no tick has come yet
    story.join("a", inc="two")
    assert story.node("a").incarnation == "two"


def test_agent_that_was_restarted_ends_its_round() -> None:
    story = running("a", "b")
    story.cut("b")
    story.join("b", inc="b-2")
    assert story.ended == "lost"
    assert bare(story.told("a").reason) == ends.node_lost("b", ends.departed(ReasonCode.AGENT_REPLACED))
    assert story.told("b").kind == "wait"
    with pytest.raises(StaleIncarnation):
        story.do(Renew("b", "b-1"))
    with pytest.raises(StaleIncarnation):
        story.do(Leave(node_id="b", incarnation="b-1"))
    story.join("a")
    assert story.order == ["a", "b"]
    assert story.group.restarts == 0


def test_a_node_whose_agent_died_is_lost_for_good() -> None:
    """Its guardian says so; what it had sent before comes late."""
    story = running("a", "b")
    for _ in range(2):
        story.do(Leave(node_id="b", incarnation="b-1", why="its agent died", died=True))
    assert story.ended == "lost"
    assert story.said("node_lost") == [ends.node_lost("b", ends.departed(ReasonCode.AGENT_DIED))]
    with pytest.raises(StaleIncarnation, match="restart its agent"):
        story.join("b", inc="b-1")
    story.join("b", inc="b-2")
    story.join("a")
    assert story.order == ["a", "b"]
    assert story.group.restarts == 0


def test_lost_node_that_returns_has_to_stop_first() -> None:
    story = running("a", "b")
    story.lose("b")
    told = story.told("b")
    assert (told.kind, told.code, told.round) == ("stop", "lost", 1)
    story.renew("b")
    assert story.node("b").phase == "lost"
    story.join("b", after=0)
    assert story.node("b").phase == "lost"
    assert story.join("b", after=1).kind == "wait"
    story.join("a")
    assert story.group.state == "starting"


def test_drained_node_exits_and_stays_out() -> None:
    story = running("a", "b", min_nodes=1)
    story.drain("b")
    told = story.told("b")
    assert (told.kind, told.code, told.exit_code) == ("exit", "drained", 4)
    assert told.reason == ends.node_drained("g", "b")
    assert story.ended == "drained"
    story.leave("b")
    story.join("a")
    assert story.order == ["a"]
    assert story.join("b", inc="b-2").kind == "exit"
    story.wait(30)
    assert story.ended is None
    story.leave("b")
    story.undrain("b")
    story.join("b", inc="b-3")
    story.wait(1)
    assert story.ended == "joined"


def test_sigterm_first_leaving_then_left() -> None:
    story = running("a", "b", min_nodes=1)
    story.leaving("b")
    assert story.ended == "left"
    going = ends.node_leaving("b", ends.agent_left("SIGTERM", leaving=True))
    assert bare(story.told("a").reason) == going
    assert story.told("b").kind == "stop"
    story.join("a")
    what = waits_for(story)
    assert what.code == "stopping"
    assert what.nodes == ("b",)
    story.leaving("b")
    story.leave("b")
    story.leave("b")
    assert story.said("node_left") == [ends.node_left("b", ends.agent_left("SIGTERM"))]
    assert story.order == ["a"]
    told = story.told("b")
    assert (told.kind, told.code) == ("exit", "left")


def test_a_lost_node_that_leaves_is_not_taken_for_a_join_that_it_sent_before() -> None:
    story = Story(min_nodes=2)
    story.join("a")
    story.lose("a")
    story.leaving("a")
    story.join("a")  # on its way since before
    story.join("b")
    story.wait(20)
    assert len(story.said("node_returned")) == 1
    assert story.group.round is None


def test_first_to_name_a_field_fixes_it() -> None:
    story = Story(min_nodes=2, max_restarts=5)
    story.join("a")
    story.join("b", spec={"min_nodes": 2})
    before = story.group
    for name, fixed, given in (("max_restarts", 5, 6), ("lease_s", 5, 9)):
        with pytest.raises(SpecConflict) as refused:
            story.join("c", spec={name: given})
        assert refused.value.conflict.differences == (Difference(name, str(fixed), str(given)),)
    assert story.group is before


def test_open_group_waits_for_a_command() -> None:
    story = Story()
    told = story.join("a", wants_command=True, spec={"min_nodes": 2})
    assert told.reason == waits_for(story) == waiting.no_command("g", ["a"])
    story.join("b", wants_command=True)
    story.wait(1000)
    assert story.group.state == "waiting"
    assert story.deadline_in == pytest.approx(LEASE_S)
    with pytest.raises(SpecConflict) as refused:
        story.put(min_nodes=3, command=("train.py",))
    assert refused.value.conflict.differences == (Difference("min_nodes", "2", "3"),)
    story.put(command=("train.py", "--lr", "1"), max_restarts=9)
    story.wait(10)
    start = story.start("a")
    assert (start.command, start.max_restarts) == (("train.py", "--lr", "1"), 9)
    with pytest.raises(SpecConflict) as refused:
        story.put(command=("other.py",))
    assert refused.value.conflict.differences == (Difference("command", "'train.py --lr 1'", "'other.py'"),)
    with pytest.raises(SpecConflict):
        story.put(max_restarts=8)


def test_members_of_the_round_are_not_forgotten() -> None:
    story = running("a", "b", min_nodes=1, on_join="spare")
    story.succeeded("b")
    story.leave("b")
    for number in range(200):
        story.join(f"pod{number}")
        story.leave(f"pod{number}")
    assert "b" in story.group.nodes


def test_round_numbers_stay_numbers_of_json_whatever_a_node_claims() -> None:
    story = Story(last_call_s=0)
    with pytest.raises(Refused, match="9007199254740992"):
        story.join("a", after=2**53)
    story.join("a", after=2**52)
    assert story.told("a").round == 2**52 + 1
    story.started("a")
    story.restart()
    story.join("a")
    assert story.told("a").round == 2**52 + 2
