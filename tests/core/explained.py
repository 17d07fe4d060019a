"""Why a story's group or one of its nodes waits, for tests that compare reasons."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hetrdzv.core.why import why_left_out
from hetrdzv.protocol.failure import Ended, Failure
from hetrdzv.protocol.reasons import ends, waiting
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.reasons.waiting import Ready
from hetrdzv.protocol.texts.who import Nodes
from tests.core.driver import Story


def waits_for(story: Story) -> Reason:
    """What a group without a round waits for, without the end of its last one."""
    return replace(story.reason, cause=None)


def left_out(story: Story, node_id: str) -> Reason:
    """Why a node is not in the round that runs, as it is told, in a clause."""
    why = why_left_out(story.group, story.node(node_id))
    assert story.told(node_id).reason == waiting.left_out(story.group.last_round, node_id, why)
    return why


def ready(node_ids: Iterable[str], want: int, slots: int | None = None) -> Ready:
    """These nodes are ready, of so many, or with so many slots."""
    return Ready(Nodes.of(node_ids), want, slots)


def failed(
    node_id: str, rank: int = 0, exit_code: int | None = 1, before: Ended | None = None, **more: Any
) -> Reason:
    """Why a round ends of which a worker has failed as `Story.failed` says."""
    fields = {"local_rank": 0, "message": "Traceback: boom", **more}
    return ends.worker_failed(node_id, Failure(rank=rank, exit_code=exit_code, **fields), before)
