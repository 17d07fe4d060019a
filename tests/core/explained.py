"""Why a story's group or one of its nodes waits, for tests that compare reasons."""

from collections.abc import Iterable

from hetrdzv.protocol.facts.parts import Ready
from hetrdzv.protocol.facts.reasons import LeftOut, Waits, WaitsFor, WhyLeftOut
from hetrdzv.protocol.texts.who import Nodes
from tests.core.driver import Story


def waits_for(story: Story) -> WaitsFor:
    """What a group without a round waits for."""
    assert isinstance(story.reason, Waits), story.reason
    return story.reason.what


def left_out(story: Story, node_id: str) -> WhyLeftOut:
    """Why a node is not in the round that runs, as it is told."""
    reason = story.told(node_id).reason
    assert isinstance(reason, LeftOut), reason
    assert (reason.round, reason.node_id) == (story.group.last_round, node_id)
    return reason.why


def ready(node_ids: Iterable[str], want: int, slots: int | None = None) -> Ready:
    """These nodes are ready, of so many, or with so many slots."""
    return Ready(nodes=Nodes.of(node_ids), want=want, slots=slots)
