"""Words for snapshots: which step is safe, what is missing of one, and what was lost."""

from collections.abc import Callable, Mapping
from typing import Any, assert_never

from hetrdzv.protocol.facts.events import Event
from hetrdzv.protocol.pages import GroupSummary
from hetrdzv.protocol.rooms.snapshots import (
    BeganFromSnapshot,
    Incomplete,
    Lack,
    NobodyHasAll,
    NotOnDisk,
    NotReadable,
    NotTaken,
    PartsMissing,
    SafeShown,
    SnapshotWanted,
    Stamp,
    ValuesDiffer,
)
from hetrdzv.protocol.texts.phrasing import count, have, names, one_or_more, ranked

NOBODY_HAS = "no node that is here has a step (what was written to --snapshot-to is found by the next ones)"
"""Of a job whose nodes hold none."""


def of_group(group: GroupSummary) -> str:
    """What of a job's work is safe; empty where no step ever was, as in all jobs that keep no snapshots."""
    return safe(group.snapshot) if group.snapshot is not None else ""


def safe_step(group: GroupSummary) -> str:
    """The same in two words: `step 120`."""
    newest = group.snapshot.safe if group.snapshot is not None else None
    return f"step {newest.step}" if newest is not None else ""


def _step(stamp: Stamp) -> str:
    return f"step {stamp.step}{_earlier(stamp)}"


def _earlier(stamp: Stamp) -> str:
    return " of an earlier job" if stamp.origin is not None else ""


def safe(value: SafeShown) -> str:
    """Which step is safe, where, and what was lost before: `step 120 is safe (gpu1, gpu2); 4 steps were lost ...`."""
    now = f"{_step(value.safe)} is safe ({_where(value)})" if value.safe is not None else ""
    if value.began is None:
        return now
    began = f"the newest round began from {_step(value.began)}"
    cost = lost(value.lost, value.newer)
    return f"{now or NOBODY_HAS}; {began}" + (f", {cost}" if _is_said(value.began, value.lost) else "")


def _is_said(stamp: Stamp, lost: int | None) -> bool:
    """Whether it is said what is lost: that nothing is says nothing about the job that has written it."""
    return stamp.origin is None or lost != 0


def _where(value: SafeShown) -> str:
    """Where what is safe is: `gpu1, gpu2; step 100 on disk`."""
    if value.on_disk is None:
        return names(value.nodes)
    return f"{names(value.nodes)}; {_step(value.on_disk)} on disk" if value.nodes else "on disk"


def lost(steps: int | None, newer: Incomplete | None = None) -> str:
    """How many steps were lost, and why: `no step lost`, `7 steps lost (of step 127 nobody has the part of rank 1)`."""
    why = f" (of step {newer.stamp.step} {lacks(newer.lack)})" if newer is not None else ""
    if steps is None:
        return f"an unknown number of steps lost{why}"
    return f"{count(steps, 'step') if steps else 'no step'} lost{why}"


def lacks(lack: Lack) -> str:
    """Why a snapshot is not complete, in a clause."""
    match lack:
        case NobodyHasAll():
            return "no node has all that its ranks have alike"
        case PartsMissing():
            return f"nobody has the {one_or_more(lack.ranks, 'part', 'parts')} of {ranked(lack.ranks)}"
        case ValuesDiffer():
            more = f" (and {count(lack.more, 'more value')})" if lack.more else ""
            return f"the value '{lack.name}'{more} is not the same on all ranks: another one on {names(lack.nodes)}"
        case NotReadable():
            return f"workers on {names(lack.nodes)} could load no copy of it"
        case _:
            assert_never(lack)


def _which(stamp: Stamp) -> str:
    return f"step {stamp.step} of round {stamp.round}{_earlier(stamp)}"


def _values_differ(value: ValuesDiffer) -> str:
    advice = "name it in per_rank, or make it the same"
    return f"the snapshot of {_which(value.stamp)} is not complete: {lacks(value)}; {advice}"


def _is_not_on_disk(value: NotOnDisk) -> str:
    return f"the snapshot of {_which(value.stamp)} is not on disk: {value.why} ({names(value.nodes)})"


def _is_not_taken(value: NotTaken) -> str:
    return f"no snapshots are taken on {names(value.nodes)}: {value.why}"


def _began(facts: BeganFromSnapshot, event: Event) -> str:
    if facts.stamp is None:
        return f"round {event.round} begins anew: {lost(facts.lost, facts.newer)}"
    whose = "is on disk" if facts.on_disk else have(facts.nodes)
    where = f"the snapshot of {_which(facts.stamp)}, which {whose}"
    cost = f": {lost(facts.lost, facts.newer)}" if _is_said(facts.stamp, facts.lost) else ""
    return f"round {event.round} begins from {where}{cost}"


def _wanted(facts: SnapshotWanted, event: Event) -> str:
    return f"the next round is to begin from the snapshot of {_which(facts.stamp)}"


EVENTS: Mapping[type, Callable[[Any, Event], str]] = {
    BeganFromSnapshot: _began,
    NotOnDisk: lambda facts, _: _is_not_on_disk(facts),
    NotTaken: lambda facts, _: _is_not_taken(facts),
    SnapshotWanted: _wanted,
}

WARNINGS: Mapping[type, Callable[[Any], str]] = {
    ValuesDiffer: _values_differ,
    NotOnDisk: _is_not_on_disk,
    NotTaken: _is_not_taken,
}

COSTS: Mapping[str, Callable[[Any], str]] = {
    "began_from_snapshot": lambda facts: lost(facts.lost, facts.newer) if facts.lost != 0 else "",
}
"""What a round that begins says about what the end of the one before has cost, by the kind of event; empty: nothing."""
