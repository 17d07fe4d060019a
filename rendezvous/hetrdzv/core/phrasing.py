"""User-facing phrasing: numbers with their nouns, lists of names, a worker's end in one sentence."""

import heapq
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet

from hetrdzv.core.model import Failure, Member, Round
from hetrdzv.core.selection.order import natural_key
from hetrdzv.protocol.settings import UNLIMITED_RESTARTS
from hetrdzv.protocol.states import GroupState


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def percent(share: float) -> str:
    """A share, rounded down, so that 100 % means all of it: `99.9 %`."""
    return f"{int(share * 1000) / 10:g} %"


def spent_of(restarts: int, budget: int) -> str:
    """How many restarts were spent: `1 of 3`, or `1` where there is no limit to speak of."""
    return str(restarts) if budget >= UNLIMITED_RESTARTS else f"{restarts} of {budget}"


def ended(outcome: GroupState) -> str:
    """The outcome of a job as a predicate: `has succeeded`, `has failed`, `was cancelled`."""
    return "was cancelled" if outcome is GroupState.CANCELLED else f"has {outcome}"


MOST_NAMES = 5
"""How many nodes a text names; the others are counted."""


def names(node_ids: Iterable[str]) -> str:
    """Names in order, the first few of many."""
    known: Collection[str] = node_ids if isinstance(node_ids, list | tuple | frozenset) else list(node_ids)
    first = heapq.nsmallest(MOST_NAMES, known, key=natural_key)
    more = f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
    return (", ".join(first) or "nobody") + more


def ranks(member: Member) -> str:
    """The global ranks of a member: `rank 4`, or `ranks 8 to 11`."""
    last = member.rank_offset + member.slots - 1
    return f"rank {last}" if member.slots == 1 else f"ranks {member.rank_offset} to {last}"


MOST_RANGES = 5
"""How many ranges of ranks a text names; the other ranks are counted."""


def rank_list(numbers: Iterable[int]) -> str:
    """Ranks in order, in ranges: `3`, `0 to 2 and 4`, `0, 2, 4, 6, 8 and 37 more`."""
    ranges: list[list[int]] = []
    for rank in sorted(numbers):
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    parts: list[str] = []
    for first, last in ranges[:MOST_RANGES]:
        parts += [f"{first} to {last}"] if last > first + 1 else sorted({str(first), str(last)}, key=int)
    more = sum(last - first + 1 for first, last in ranges[MOST_RANGES:])
    if more:
        parts.append(f"{more} more")
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def ranked(numbers: Iterable[int]) -> str:
    """`rank 3`, or `ranks 0 to 2 and 4`."""
    known = list(numbers)
    return f"{'rank' if len(known) == 1 else 'ranks'} {rank_list(known)}"


def never_met(current: Round) -> str:
    """What it means that the workers of a round have not met."""
    met, world = current.met or 0, current.world_size
    hint = "unless they meet in another way than init_process_group with env://"
    if met:
        return f"only {met} of {world} workers met: the others may have trained alone, {hint}"
    who = ", ".join(map(str, range(world))) if world <= MOST_NAMES else f"0 to {world - 1}"
    return f"ranks {who} never met: each may have trained alone, {hint}"


def unreached(pairs: AbstractSet[tuple[str, str]], among: AbstractSet[str]) -> str:
    """Which master cannot be reached from which nodes; pairs are (node, master)."""
    by_master: dict[str, list[str]] = {}
    for node_id, master in pairs:
        if among >= {node_id, master}:
            by_master.setdefault(master, []).append(node_id)
    masters = sorted(by_master, key=natural_key)
    parts = [f"{master} cannot be reached from {names(by_master[master])}" for master in masters[:MOST_NAMES]]
    if len(masters) > MOST_NAMES:
        parts.append(f"and {count(len(masters) - MOST_NAMES, 'more master')}")
    return "; ".join(parts)


def lasting(text: str, for_s: float) -> str:
    """The text of a verdict with its time: `ranks 0 to 2 have waited 40 s for rank 3 (gpu2), which is at ...`."""
    for present, perfect in ((" wait for ", "have"), (" waits for ", "has")):
        if present in text:
            return text.replace(present, f" {perfect} waited {for_s:.0f} s for ", 1)
    return f"{text} ({for_s:.0f} s)"


def describe_hang(failure: Failure) -> str:
    """A hang in one sentence; see `Failure.hang`."""
    return f"{'a worker hangs' if failure.rank >= 0 else 'the workers hang'}: {failure.hang}"


def describe_failure(node_id: str | None, failure: Failure) -> str:
    """A worker's failure in one sentence: which worker, on which node, and how it ended."""
    if failure.hang:
        return describe_hang(failure)
    who = f"the program of {node_id}"
    if failure.rank >= 0:
        who = f"rank {failure.rank} (local rank {failure.local_rank}) on {node_id}"
    if failure.signal is not None:
        return f"{who} was killed by {failure.signal}"
    if failure.exit_code is not None:
        return f"{who} exited with code {failure.exit_code}"
    return f"{node_id} could not start its workers: {failure.message}"


MOST_OF_LINE = 200
"""How much of somebody else's line a sentence quotes (characters)."""


def with_last_line(text: str, failure: Failure) -> str:
    """A failure's description with the last line of the worker's own words, if it exited with a code and left any.

    One that was killed did not choose its last words: they may be anything, such as half a progress bar.
    """
    last = failure.message.rstrip().rpartition("\n")[2].strip()
    if failure.exit_code is None or not last or last == f"exit code {failure.exit_code}":
        return text
    return f"{text}: {clipped(last)}"


def clipped(line: str) -> str:
    """A line of somebody else's words, no longer than a sentence can quote."""
    return line if len(line) <= MOST_OF_LINE else line[: MOST_OF_LINE - 1] + "…"
