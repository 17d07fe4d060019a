"""A node whose workers fail again and again is used last."""

from hetrdzv.protocol.reasons import events, waiting
from tests.core.driver import Story, running
from tests.core.explained import left_out


def rejoin(story: Story) -> None:
    """All who have to, stop and start their workers."""
    for node in list(story.group.nodes.values()):
        if not node.gone and story.told(node.node_id).kind == "stop":
            story.join(node.node_id)
    story.wait(1.1)
    for node in list(story.group.nodes.values()):
        if node.phase == "starting":
            story.started(node.node_id)


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
    assert story.said("node_used_last") == [events.node_used_last("g", "b", 3)]
    assert left_out(story, "b") == events.node_used_last("g", "b", 3)
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
    assert left_out(story, "b") == waiting.max_nodes("b", 2)


def test_failures_elsewhere_break_the_row() -> None:
    story = running("a", "b", max_nodes=2, max_restarts=9, restart_wait_s=0, lease_s=50)
    story.join("c")
    for node_id in "bbabb":
        fails(story, node_id)
    assert story.order == ["a", "b"]


def test_one_that_cannot_start_again_and_again_costs_nothing_and_is_used_last() -> None:
    story = running("a", "b", min_nodes=1, max_restarts=1, restart_wait_s=0, lease_s=50)
    for number in range(3):
        story.failed("b", rank=-1, local_rank=-1, exit_code=None, message="no snapshots", final=True)
        story.leave("b")
        story.join("a")
        story.wait(1.1)
        assert (story.group.restarts, story.order) == (0, ["a"])
        assert len(story.said("node_used_last")) == (number == 2)
        story.started("a")
        story.join("b", inc=f"b{number}")
        story.wait(1.1)
        story.join("a")
        story.wait(1.1)
        assert story.order == ["a", "b"]
        story.started("a", "b")
