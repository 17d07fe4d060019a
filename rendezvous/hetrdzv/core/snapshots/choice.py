"""From which snapshot the next round begins, and which are passed by since rounds that began from them failed.

A failure says something about a snapshot if the script ended by itself, as with a loss that is not a number. Killed
workers, lost nodes and hangs say nothing about it: they would have happened anywhere.
"""

from collections.abc import Sequence
from dataclasses import replace

from hetrdzv.core.model import Group, Node, Round
from hetrdzv.core.rounds.restart_backoff import FROM_OUTSIDE
from hetrdzv.core.snapshots.complete import Gathered, began_from
from hetrdzv.protocol.facts.causes import FailedWorker, MemberLeft, Stopped
from hetrdzv.protocol.rooms.snapshots import (
    FailedAgain,
    Kept,
    NotLoaded,
    NotWanted,
    PassedBy,
    Stamp,
    WhyPassedBy,
)
from hetrdzv.protocol.texts.who import Nodes

MOST_PASSED = 8
"""How many snapshots that are passed by are remembered: those of the highest steps."""

MOST_FAILED = 8
"""How many kinds of failures are remembered."""

MOST_TRIES = 2
"""How often rounds may fail to load a snapshot, or fail in the same way after that."""


def choose(kept: Kept, found: Sequence[Gathered]) -> Gathered | None:
    """The snapshot from which a round would begin; None: there is none.

    What is passed by is better than nothing, unless nobody can load it.

    Args:
        found: all that there are, the newest first.
    """
    complete = [one for one in found if one.lack is None]
    why = {passed.stamp: passed.why for passed in kept.passed}
    if (wanted := next((one for one in complete if one.stamp == kept.wanted), None)) is not None:
        return wanted
    free = (one for one in complete if one.stamp not in why)
    loads = (one for one in complete if not isinstance(why.get(one.stamp), NotLoaded))
    return next(free, None) or next(loads, None)


def after_round(kept: Kept, group: Group, found: Sequence[Gathered]) -> Kept:
    """What is kept once the newest round of a group has been judged.

    Args:
        found: all snapshots that there are, the newest first.
    """
    ended = group.round
    if ended is None or ended.end is None or ended.snapshot is None:
        return kept
    if kept.tried is None or kept.tried.step != ended.snapshot.step:
        kept = replace(kept, failed=(), not_loaded=0)
    kept = replace(kept, tried=began_from(ended, kept.origin))
    cause = ended.end.cause
    if isinstance(cause, FailedWorker) and _tells(cause):
        return _after_failure(kept, ended, cause, found)
    if isinstance(cause, MemberLeft) and isinstance(cause.why, Stopped):
        return _after_refusal(kept, group, ended, found)
    return kept


def _tells(worker: FailedWorker) -> bool:
    """Whether a failure may come of the state that the script has loaded."""
    return worker.hang is None and worker.signal not in FROM_OUTSIDE and worker.rank >= 0


def _after_failure(kept: Kept, ended: Round, worker: FailedWorker, found: Sequence[Gathered]) -> Kept:
    assert ended.snapshot is not None
    anywhere = replace(worker, node_id=None, rank=-1, local_rank=-1)
    # It had passed by a snapshot, went on from an older one, and came no further: what it left is as bad.
    reached = max((one.stamp.step for one in kept.passed if _is_again(one.why, anywhere)), default=-1)
    own = (one.stamp for one in found if one.stamp.origin is None)
    bad = [stamp for stamp in own if stamp.round == ended.number and stamp.step <= reached]
    if anywhere in kept.failed:
        bad += [one.stamp for one in found if one.stamp.step == ended.snapshot.step]
    failed = kept.failed if anywhere in kept.failed else (*kept.failed, anywhere)[-MOST_FAILED:]
    return pass_by(replace(kept, failed=failed), bad, FailedAgain(worker=worker))


def _is_again(why: WhyPassedBy, anywhere: FailedWorker) -> bool:
    again = why.worker if isinstance(why, FailedAgain) else None
    return again is not None and replace(again, node_id=None, rank=-1, local_rank=-1) == anywhere


def _after_refusal(kept: Kept, group: Group, ended: Round, found: Sequence[Gathered]) -> Kept:
    """A node that cannot load its own copy no longer has it; if it cannot load the others' either, all are bad."""
    assert kept.tried is not None
    refusing = [
        member.node_id for member in ended.members if _refuses(group.nodes.get(member.node_id), kept.tried)
    ]
    if not refusing:
        return kept
    kept = replace(kept, not_loaded=kept.not_loaded + 1)
    bad = [one.stamp for one in found if one.stamp == kept.tried] if kept.not_loaded >= MOST_TRIES else []
    return pass_by(kept, bad, NotLoaded(nodes=Nodes.of(refusing)))


def _refuses(node: Node | None, stamp: Stamp) -> bool:
    return node is not None and node.snapshots is not None and stamp in node.snapshots.refused


def after_choice(kept: Kept, chosen: Gathered | None, found: Sequence[Gathered]) -> Kept:
    """What is kept once a round begins from a snapshot: a person's choice holds for the rounds after it, too.

    Args:
        found: all snapshots that there are; those that nobody has any more are forgotten.
    """
    if chosen is not None and chosen.stamp == kept.wanted:
        newer = [one.stamp for one in found if one.stamp.newness > chosen.stamp.newness]
        kept = replace(
            kept,
            failed=(),
            not_loaded=0,
            passed=tuple(one for one in kept.passed if one.stamp != chosen.stamp),
        )
        kept = pass_by(kept, newer, NotWanted())
    there = {one.stamp for one in found}
    return replace(kept, wanted=None, passed=tuple(one for one in kept.passed if one.stamp in there))


def pass_by(kept: Kept, stamps: Sequence[Stamp], why: WhyPassedBy) -> Kept:
    """Pass some snapshots by from now on; what cannot be loaded is more than any other reason."""
    known = {passed.stamp: passed for passed in kept.passed}
    new = {
        stamp: PassedBy(stamp=stamp, why=why)
        for stamp in stamps
        if stamp not in known or (isinstance(why, NotLoaded) and not isinstance(known[stamp].why, NotLoaded))
    }
    if not new:
        return kept
    passed = sorted((known | new).values(), key=lambda one: one.stamp.newness)
    return replace(kept, passed=tuple(passed[-MOST_PASSED:]))
