"""Converts what is known of workers to replies of the API."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from hetrdzv.protocol.pages import WorkerReply
from hetrdzv.service.progress.table import Seen
from hetrdzv.words.warnings import unseen


def worker_replies(seen: Mapping[int, Seen], on_page: AbstractSet[str], now: float) -> list[WorkerReply]:
    """How far the workers of some nodes have come."""
    return [worker_reply(seen[rank], now) for rank in sorted(seen) if seen[rank].node_id in on_page]


def worker_reply(seen: Seen, now: float) -> WorkerReply:
    """How far a worker has come."""
    sample, worker = seen.sample, seen.worker(now)
    return WorkerReply(
        rank=sample.rank,
        node_id=seen.node_id,
        state=worker.state,
        idle_s=round(worker.idle_s, 3),
        unseen=unseen(seen.unseen(now)),
        sources=sample.sources,
        collectives=sample.count,
        per_s=seen.collectives.per_s,
        step=sample.step,
        steps_per_s=seen.steps.per_s,
        waiting=sample.waiting,
    )
