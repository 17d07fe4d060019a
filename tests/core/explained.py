"""Why a story's group or one of its nodes waits, for tests that compare reasons."""

from collections.abc import Iterable
from typing import Any

from hetrdzv.protocol.failure import EarlierExits, Failure
from hetrdzv.protocol.reasons import ends
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.reasons.waiting import Ready
from hetrdzv.protocol.texts.who import Nodes


def ready(node_ids: Iterable[str], want: int, slots: int | None = None) -> Ready:
    """These nodes are ready, of so many, or with so many slots."""
    return Ready(Nodes.of(node_ids), want, slots)


def failed(
    node_id: str, rank: int = 0, exit_code: int | None = 1, before: EarlierExits | None = None, **more: Any
) -> Reason:
    """Why a round ends of which a worker has failed as `Story.failed` says."""
    fields = {"local_rank": 0, "message": "Traceback: boom", **more}
    return ends.worker_failed(node_id, Failure(rank=rank, exit_code=exit_code, **fields), before)
