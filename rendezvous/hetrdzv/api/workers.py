"""What people see of workers: how far they have come, their stacks and logs, also of rounds that are over."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime

from hetrdzv.core.model import Group, Round, Stall
from hetrdzv.core.why import why as why_group
from hetrdzv.protocol.errors import NoRound, UnknownRank
from hetrdzv.protocol.pages import WorkerReply
from hetrdzv.protocol.reasons.reason import ReasonCode
from hetrdzv.protocol.reasons.reason import shown as in_words
from hetrdzv.protocol.reasons.warnings import UNSEEN
from hetrdzv.protocol.stacks import EARLIER, About, Stack
from hetrdzv.protocol.texts.phrasing import ranked
from hetrdzv.protocol.texts.times import Clock
from hetrdzv.protocol.texts.who import Ranks
from hetrdzv.service.progress.table import Seen
from hetrdzv.service.service import Service

MOST_RANKS = 1 << 17
"""How many workers are asked at once for stacks or logs."""


def told_stall(group: Group) -> Stall | None:
    """Who is said to be waited for in the round that runs; None: nobody."""
    return group.active_round.told_stall if group.active_round is not None else None


def worker_replies(seen: Mapping[int, Seen], stall: Stall | None, now: float) -> list[WorkerReply]:
    """How far the workers of a round have come; `stall`: of which people have been told."""
    return [worker_reply(seen[rank], stall, now) for rank in sorted(seen)]


def worker_reply(seen: Seen, stall: Stall | None, now: float) -> WorkerReply:
    """How far a worker has come."""
    sample, worker = seen.sample, seen.worker(now)
    return WorkerReply(
        rank=sample.rank,
        node_id=seen.node_id,
        state=worker.state,
        idle_s=round(worker.idle_s, 3),
        unseen=UNSEEN[why][0] if (why := seen.unseen(now)) in UNSEEN else why,
        sources=sample.sources,
        collectives=sample.count,
        per_s=seen.collectives.per_s,
        step=sample.step,
        steps_per_s=seen.steps.per_s,
        waiting=sample.waiting,
        shown_state=_shown_state(worker.state, sample.rank, stall),
        pid=sample.pid,
    )


def _shown_state(state: str, rank: int, stall: Stall | None) -> str:
    """What a worker does, where others wait for it as well."""
    if stall is None or state != "runs":
        return state
    if rank in stall.ranks:
        return "waited for"
    return "waits" if rank in stall.hang.waiting else state


@dataclass(frozen=True, slots=True)
class Shown:
    """The stacks or logs of a round's workers.

    Attributes:
        told: in the order of ranks; each says why if there is nothing of it.
        over: whether that round is over.
        at: when they were taken (wall-clock time); None: just now.
    """

    round: int
    told: tuple[Stack, ...]
    over: bool = False
    at: datetime | None = None


async def shown(
    service: Service, group_id: str, about: About, ranks: Sequence[int] | None, number: int | None
) -> Shown:
    """The stacks or logs of a round's workers: of the running one from their agents, else what was kept.

    Args:
        ranks: whose (global ranks); None: all.
        number: of the round; None: the running one, else the newest.

    Raises:
        UnknownGroup: there is no such group.
        NoRound: nothing was kept.
        UnknownRank: that round has, or had, no such rank.
    """
    group = service.group(group_id)
    active = None if group.state.terminal else group.active_round
    if active is not None and number in (None, active.number):
        _require_few(group, active, ranks)
        _require_ranks(group, active.number, active.world_size, ranks, "has")
        told = await service.questions.of_workers(group, active, ranks, about)
        return Shown(active.number, tuple(told))
    if about is About.LOGS and number is None and group.round is not None:
        number = group.round.number
    trace = service.traces.of(group_id, about, number)
    number = number if trace is None else trace.round
    if number is not None and (world_size := _world_size(service, group, number)) is not None:
        _require_ranks(group, number, world_size, ranks, "had")
    kept, at = (list(trace.by_rank.values()), trace.at) if trace is not None else ([], None)
    if about is About.LOGS and number is not None:  # agents that are here have kept more
        told = await service.questions.of_earlier(group, number, ranks)
        said, at = {(log.rank, log.node_id) for log in told}, None if told else at
        kept = [*told, *(log for log in kept if (log.rank, log.node_id) not in said)]
    if not kept:
        raise NoRound(_nothing(group, about, number, service.now()))
    assert number is not None
    wanted = set(ranks) if ranks is not None else _all_of(group, about, number)
    kept = [one for one in kept if ranks is None or one.rank in wanted]
    kept += _missing(group, about, number, wanted - {one.rank for one in kept})
    kept.sort(key=lambda one: one.rank)
    return Shown(number, tuple(kept), over=True, at=at)


def _all_of(group: Group, about: About, number: int) -> AbstractSet[int]:
    """The ranks of a round that is over, as far as they are known; of stacks not all may have been taken."""
    current = group.round
    if about is About.STACKS or current is None or current.number != number:
        return set()
    return set(range(current.world_size))


def _missing(group: Group, about: About, number: int, ranks: AbstractSet[int]) -> list[Stack]:
    """Of whom there is nothing, and why."""
    current = group.round if group.round is not None and group.round.number == number else None
    members = current.members if current is not None and ranks else ()
    nodes = {rank: member.node_id for member in members for rank in member.ranks}
    here = {node.node_id for node in group.live}
    nobody, not_yet = f"nobody has kept what it wrote in round {number}", "its agent has not sent that yet"
    if about is About.STACKS:
        nobody = not_yet = f"its stack was not taken when round {number} hung"
    return [
        Stack(rank=rank, node_id=nodes.get(rank, ""), why=not_yet if nodes.get(rank) in here else nobody)
        for rank in ranks
    ]


def wrote(service: Service, group: Group, node_id: str, number: int, said: Sequence[Stack]) -> None:
    """Keep what a node says that its workers wrote in a round, which may be over by now.

    Who was in which place is known of the newest round only. Of one before it, what another node has said stays.
    """
    newest = group.round
    if newest is None or not newest.number - EARLIER < number <= newest.number:
        return
    logs = [replace(log, node_id=node_id) for log in said]
    world_size = _world_size(service, group, number)
    if number == newest.number:
        member = newest.member(node_id)
        logs = [log for log in logs if member is not None and log.rank in member.ranks]
    elif world_size is not None:
        trace = service.traces.of(group.group_id, About.LOGS, number)
        others = {rank for rank, log in trace.by_rank.items() if log.node_id != node_id} if trace else set()
        logs = [log for log in logs if log.rank in range(world_size) and log.rank not in others]
    if world_size is not None:
        service.traces.wrote(group.group_id, number, logs, world_size)


def _world_size(service: Service, group: Group, number: int) -> int | None:
    """How many ranks a round had; None: its history no longer says so."""
    if group.round is not None and group.round.number == number:
        return group.round.world_size
    events = (event.reason for event in service.history(group.group_id)[0])
    formed = (one for one in events if one.round == number and one.code == ReasonCode.ROUND_FORMED)
    return next((int(one.data["world_size"]) for one in formed), None)


def _require_few(group: Group, active: Round, ranks: Sequence[int] | None) -> None:
    if ranks is None and active.world_size > MOST_RANKS:
        raise UnknownRank(
            f"round {active.number} of group '{group.group_id}' has {active.world_size:,} ranks, but no more than "
            f"{MOST_RANKS:,} can be asked at once: name some of them (rank=0&rank=1)"
        )


def _require_ranks(group: Group, number: int, world_size: int, ranks: Sequence[int] | None, has: str) -> None:
    unknown = [rank for rank in ranks or () if not 0 <= rank < world_size]
    if unknown:
        known = ranked(Ranks(ranges=((0, world_size - 1),)))
        raise UnknownRank(
            f"no such rank: round {number} of group '{group.group_id}' {has} {known}, not {unknown[0]}"
        )


def _nothing(group: Group, about: About, number: int | None, now: float) -> str:
    """Why there is nothing to be seen of a group's workers."""
    if number is None:
        return f"group '{group.group_id}' has no workers now: {in_words(why_group(group, now), Clock(now))}"
    if number > group.last_round:
        newest = f"its newest is round {group.last_round}" if group.last_round else "it has had none yet"
        return f"group '{group.group_id}' has no round {number}: {newest}"
    if about is About.STACKS:
        return f"no stacks of round {number} of group '{group.group_id}' are kept: they are taken when a round hangs"
    return f"nobody has kept what workers wrote in round {number} of group '{group.group_id}'"
