"""What a stall does to its round: it is told once it has lasted, and ends the round where `hang_timeout_s` says so."""

from dataclasses import replace

from hetrdzv.core.commands import NoteStall
from hetrdzv.core.model import Round, Stall
from hetrdzv.core.rounds.timers import hangs_at, stall_rests, told_at
from hetrdzv.core.rounds.transitions import Work, end_round
from hetrdzv.protocol.facts.causes import FailedWorker
from hetrdzv.protocol.facts.events import GoesOn, Stalled
from hetrdzv.protocol.failure import Failure
from hetrdzv.protocol.rooms.stalls import Hang
from hetrdzv.protocol.states import StallKind

SAME_S = 2.0
"""Two looks at one stall may differ by this in when it began (seconds)."""


def note_stall(work: Work, command: NoteStall) -> None:
    """Record who is waited for in the running round; nothing happens if that round is over."""
    active, new = work.group.active_round, command.stall
    if active is None or active.number != command.round or work.group.state.terminal:
        return
    old = active.stall
    if old is not None and old.told and (new is None or new.since > old.since + SAME_S):
        work.say(GoesOn(stall=old.facts, for_s=work.now - old.since), _node_id(active, old))
        old = None
    if new is not None and old is not None and new.since <= old.since + SAME_S:
        if not new.stack and new.ranks[:1] == old.ranks[:1]:  # it has stood there all the time
            new = replace(new, stack=old.stack)
        if new.since >= old.since - SAME_S:
            same = new.kind == old.kind and (
                new.ranks == old.ranks or not set(new.ranks).isdisjoint(old.ranks)
            )
            new = replace(new, since=old.since, told=old.told and same)
    if new != active.stall:
        work.change(round=replace(active, stall=new))


def settle_stall(work: Work) -> None:
    """Tell of a stall that has lasted, and end its round where it lasts for too long."""
    active = work.group.active_round
    if active is None or active.stall is None or work.group.state.terminal or stall_rests(work.group):
        return
    stall, end_at = active.stall, hangs_at(work.group, active.stall)
    for_s = work.now - stall.since
    if not stall.told and stall.is_known(at := told_at(work.group, stall)) and work.now >= at:
        work.change(round=replace(active, stall=replace(stall, told=True)))
        work.say(Stalled(stall=stall.facts, for_s=for_s), _node_id(active, stall))
    if end_at is not None and stall.is_known(end_at) and work.now >= end_at:
        failure = _failure(active, stall, for_s)
        node_id = _node_id(active, stall) if failure.rank >= 0 else None
        end_round(work, FailedWorker.of(node_id, failure), hang=failure, since=stall.since)


def hang_of(active: Round | None, now: float) -> Hang | None:
    """The hang of a round of which people have been told, so far; None: there is none."""
    stall = active.told_stall if active is not None else None
    if stall is None:
        return None
    return Hang(facts=stall.facts, ranks=stall.ranks, for_s=now - stall.since)


def _failure(active: Round, stall: Stall, for_s: float) -> Failure:
    """The hang as a failure of the first worker that is waited for, or of nobody."""
    member = active.holder(stall.ranks)
    hang = Hang(facts=stall.facts, ranks=stall.ranks, for_s=for_s)
    if member is None or stall.kind is StallKind.DEADLOCK:
        return Failure(local_rank=-1, rank=-1, at=stall.since, hang=hang)
    rank = stall.ranks[0]
    local_rank = rank - member.rank_offset
    return Failure(local_rank=local_rank, rank=rank, message=stall.stack, at=stall.since, hang=hang)


def _node_id(active: Round, stall: Stall) -> str | None:
    """The node of the first worker that is waited for; None: nobody is."""
    member = active.holder(stall.ranks)
    return member.node_id if member is not None else None
