"""What people see of workers: how far they have come, their stacks and logs, also of rounds that are over."""

from collections.abc import Sequence

from hetrdzv.core.explanations import explain_group
from hetrdzv.core.model import Group, Stall
from hetrdzv.protocol.errors import NoRound, NotFound
from hetrdzv.protocol.reasons.reason import full_text as in_words
from hetrdzv.protocol.replies import WorkerOutputReply, WorkerReply
from hetrdzv.protocol.texts.node_rank_lists import RankList
from hetrdzv.protocol.worker_output import OutputKind, WorkerOutput
from hetrdzv.service.progress.samples import WorkerSample
from hetrdzv.service.service import Service


def worker_reply(seen: WorkerSample, stall: Stall | None, now: float) -> WorkerReply:
    """How far a worker has come; `stall`: of which people have been told."""
    sample, worker = seen.sample, seen.worker_at(now)
    state: str = worker.state
    if stall is not None and worker.state == "runs" and sample.rank in stall.hang.ranks:
        state = "waited for"
    elif stall is not None and worker.state == "runs" and sample.rank in stall.hang.waiting:
        state = "waits"
    return WorkerReply(
        rank=sample.rank,
        node_id=seen.node_id,
        state=state,
        idle_s=round(worker.idle_s, 3),
        unseen=seen.explain_unseen(now),
        collectives=sample.collective_count,
        per_s=seen.collectives.per_s,
        step=sample.step,
        steps_per_s=seen.steps.per_s,
        waiting=sample.waiting,
        pid=sample.pid,
    )


async def get_output(
    service: Service, group_id: str, about: OutputKind, ranks: Sequence[int], number: int | None
) -> WorkerOutputReply:
    """The stacks or logs of a round's workers: of the running one from their agents, else what was kept.

    Without a number the round is the running one, else the newest; without ranks all are meant.
    """
    group = service.group(group_id)
    active = group.running_round
    if active is not None and number in (None, active.number):
        _require_ranks(group, active.number, active.world_size, ranks)
        found = await service.queries.query_workers(group, active, ranks or range(active.world_size), about)
        return WorkerOutputReply(round=active.number, workers=tuple(found))
    if about is OutputKind.LOGS and number is None and group.round is not None:
        number = group.round.number
    kept = service.post_mortems.find(group_id, about, number)
    if kept is None:
        raise NoRound(_explain_missing_output(group, about, number, service.now()))
    _require_ranks(group, kept.round, kept.world_size, ranks)
    # stacks are taken of some workers, logs come of all
    wanted = {*(ranks or (kept.by_rank if about is OutputKind.STACKS else range(kept.world_size)))}
    why = f"its {about} of round {kept.round} are not kept"
    workers = tuple(kept.by_rank.get(rank) or WorkerOutput(rank=rank, why=why) for rank in sorted(wanted))
    at = kept.at.isoformat(timespec="milliseconds")
    return WorkerOutputReply(round=kept.round, workers=workers, over=True, at=at)


def _require_ranks(group: Group, number: int, world_size: int, ranks: Sequence[int]) -> None:
    unknown = [rank for rank in ranks if not 0 <= rank < world_size]
    if unknown:
        known = str(RankList(ranges=((0, world_size - 1),)))
        raise NotFound(
            f"no such rank: round {number} of group '{group.group_id}' has {known}, not {unknown[0]}"
        )


def _explain_missing_output(group: Group, about: OutputKind, number: int | None, now: float) -> str:
    """Why there is nothing to be seen of a group's workers."""
    if number is None:
        return f"group '{group.group_id}' has no workers now: {in_words(explain_group(group, now), now)}"
    if number > group.last_round:
        newest = f"its newest is round {group.last_round}" if group.last_round else "it has had none yet"
        return f"group '{group.group_id}' has no round {number}: {newest}"
    if about is OutputKind.STACKS:
        return f"no stacks of round {number} of group '{group.group_id}' are kept: they are taken when a round hangs"
    return f"no output of round {number} is kept of group '{group.group_id}'"
