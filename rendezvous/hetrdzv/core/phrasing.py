"""Phrases of events and causes that the core still words itself: a worker's end in one sentence."""

from hetrdzv.core.model import Failure, Member
from hetrdzv.protocol.parts import quoted
from hetrdzv.protocol.settings import UNLIMITED_RESTARTS
from hetrdzv.protocol.states import GroupState
from hetrdzv.words.phrasing import count as count
from hetrdzv.words.phrasing import names as names
from hetrdzv.words.phrasing import ranked as ranked
from hetrdzv.words.stalls import lasting


def spent_of(restarts: int, budget: int) -> str:
    """How many restarts were spent: `1 of 3`, or `1` where there is no limit to speak of."""
    return str(restarts) if budget >= UNLIMITED_RESTARTS else f"{restarts} of {budget}"


def ended(outcome: GroupState) -> str:
    """The outcome of a job as a predicate: `has succeeded`, `has failed`, `was cancelled`."""
    return "was cancelled" if outcome is GroupState.CANCELLED else f"has {outcome}"


def ranks(member: Member) -> str:
    """The global ranks of a member: `rank 4`, or `ranks 8 to 11`."""
    last = member.rank_offset + member.slots - 1
    return f"rank {last}" if member.slots == 1 else f"ranks {member.rank_offset} to {last}"


def describe_hang(failure: Failure) -> str:
    """A hang in one sentence; see `Failure.hang`."""
    assert failure.hang is not None
    who = "a worker hangs" if failure.rank >= 0 else "the workers hang"
    return f"{who}: {lasting(failure.hang.facts, failure.hang.for_s)}"


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


def with_last_line(text: str, failure: Failure) -> str:
    """A failure's description with the last line of the worker's own words, if it exited with a code and left any.

    One that was killed did not choose its last words: they may be anything, such as half a progress bar.
    """
    last = failure.message.rstrip().rpartition("\n")[2].strip()
    if failure.exit_code is None or not last or last == f"exit code {failure.exit_code}":
        return text
    return f"{text}: {quoted(last)}"
