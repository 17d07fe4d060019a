"""Who is waited for in a round, in a clause: `ranks 0 to 2 wait for rank 3 (gpu2), which is at collective 5 of 6`."""

from hetrdzv.protocol.rooms.stalls import (
    Behind,
    BlamedAll,
    Deadlock,
    FirstUse,
    Mismatch,
    Place,
    StallFacts,
    Stuck,
)
from hetrdzv.protocol.texts.phrasing import count, listed, one_or_more, ranked
from hetrdzv.protocol.texts.who import Ranks

NO_ANSWER = {"stopped": "stopped by a signal", "blocked": "stuck in the kernel (state D)"}
"""What is wrong with a process that does not answer."""


def stall(facts: StallFacts) -> str:
    """All of a stall but for how long it has lasted."""
    return _said(facts, None)


def lasting(facts: StallFacts, for_s: float) -> str:
    """A stall with its time: `ranks 0 to 2 have waited 40 s for rank 3 (gpu2), which is at ...`."""
    return _said(facts, for_s)


def _said(facts: StallFacts, for_s: float | None) -> str:
    if facts.waiting is None:
        alone = f"{blamed(facts.blamed)} {_where_behind(facts)}"
        return alone if for_s is None else f"{alone} ({for_s:.0f} s)"
    match facts:
        case Behind():
            whom = f"{blamed(facts.blamed)}, {_which(facts)} {_where_behind(facts)}"
        case Deadlock(knots=knots, more=more):
            parts = [f"{ranked(knot.ranks)} at {place(knot.place)}" for knot in knots]
            parts += [f"others in {count(more, 'more process group')}"] if more else []
            whom = f"each other: {', '.join(parts)}"
        case Mismatch():
            whom = _mismatch(facts)
        case Stuck(place=at) if at.step:
            whom = f"the end of step {at.number:,}, and none is behind"
        case Stuck(place=at):
            whom = f"{place(at)}, which does not complete although nobody is behind"
        case FirstUse(missing=missing, lane=lane):
            others, has = ("another member", "has") if missing == 1 else ("other members", "have")
            whom = f"{others}{_of(lane)}, which {has} asked for none of its collectives yet"
    return f"{_wait(facts.waiting, for_s)} for {whom}"


def _wait(waiting: Ranks, for_s: float | None) -> str:
    if for_s is None:
        return f"{ranked(waiting)} {one_or_more(waiting, 'waits', 'wait')}"
    return f"{ranked(waiting)} {one_or_more(waiting, 'has', 'have')} waited {for_s:.0f} s"


def blamed(workers: BlamedAll) -> str:
    """Ranks with their nodes: `rank 3 (gpu2)`, `ranks 8 to 15 (gpu2)`, `rank 3 (gpu2) and rank 5 (gpu3)`."""
    shown = [f"{ranked(node.ranks)} ({node.node_id})" for node in workers.nodes]
    return listed(shown + ([f"{workers.more} more"] if workers.more else []))


def place(at: Place) -> str:
    """How far workers have come: `collective 5`, `collective 5 of 6 in process group tp`, `step 7 of 8`."""
    what = "step" if at.step else "collective"
    if at.of is None:
        return f"{what} {at.number:,}{_of(at.lane)}"
    return f"{what} {at.number:,} of {at.of:,}{_of(at.lane, 'in')}"


def _of(lane: str, preposition: str = "of") -> str:
    return f" {preposition} process group {lane}" if lane else ""


def _which(facts: Behind) -> str:
    return "which" if facts.rank is None else f"of which rank {facts.rank}"


def _where_behind(facts: Behind) -> str:
    several = facts.rank is None and len(facts.blamed.ranks) > 1
    are, has = ("are", "have") if several else ("is", "has")
    s = "" if several else "s"
    cpu = {"burns": f", and burn{s} CPU", "sleeps": f", and sleep{s}", None: ""}[facts.cpu]
    where = place(facts.place) if facts.place is not None else ""
    match facts.how:
        case "stopped" | "blocked":
            return f"{are} {NO_ANSWER[facts.how]}{f', last seen at {where}' if where else ''}"
        case "ended":
            return f"{has} ended{f' after {where}' if where else ''}"
        case "none_yet":
            return f"{has} asked for no collective{_of(facts.lane)} yet{cpu}"
        case "not_begun":
            return f"{has} not begun {where}{cpu}"
        case "at":
            return f"{are} at {where}{cpu}"


def _mismatch(facts: Mismatch) -> str:
    first, *others = facts.sides
    asked = f"as {place(facts.place)}, {ranked(first.ranks)} asked for {first.op}"
    if facts.wrong is None:
        return f"each other: {asked}" + "".join(f", {ranked(side.ranks)} for {side.op}" for side in others)
    return f"{ranked(facts.wrong.ranks)}: {asked}, {blamed(facts.wrong)} for {others[0].op}"
