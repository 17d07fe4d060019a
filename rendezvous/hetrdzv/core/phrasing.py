"""User-facing phrasing: numbers with their nouns, lists of names, a worker's end in one sentence."""

import heapq
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet

from hetrdzv.core.model import Failure, Member
from hetrdzv.core.order import natural_key
from hetrdzv.core.spec import UNLIMITED_RESTARTS


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def spent_of(restarts: int, budget: int) -> str:
    """How many restarts were spent: `1 of 3`, or `1` where there is no limit to speak of."""
    return str(restarts) if budget >= UNLIMITED_RESTARTS else f"{restarts} of {budget}"


MOST_NAMED = 5
"""How many nodes a text names; of more it says how many there are."""


def names(node_ids: Iterable[str], most: int = MOST_NAMED) -> str:
    """Names in order, the first few of many."""
    known: Collection[str] = node_ids if isinstance(node_ids, list | tuple | frozenset) else list(node_ids)
    first = heapq.nsmallest(most, known, key=natural_key)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return (", ".join(first) or "nobody") + more


def ranks(member: Member) -> str:
    """The global ranks of a member: `rank 4`, or `ranks 8 to 11`."""
    last = member.rank_offset + member.slots - 1
    return f"rank {last}" if member.slots == 1 else f"ranks {member.rank_offset} to {last}"


def unreached(pairs: AbstractSet[tuple[str, str]], among: AbstractSet[str]) -> str:
    """Which of some nodes reaches which not, by master; pairs are (node, master)."""
    by_master: dict[str, list[str]] = {}
    for master, node_id in sorted(
        (master, node_id) for node_id, master in pairs if among >= {node_id, master}
    ):
        by_master.setdefault(master, []).append(node_id)
    shown = list(by_master.items())[:MOST_NAMED]
    more = f"; and {len(by_master) - MOST_NAMED} more likewise" if len(by_master) > MOST_NAMED else ""
    return "; ".join(f"{master} cannot be reached from {names(who)}" for master, who in shown) + more


def describe_failure(node_id: str, failure: Failure) -> str:
    """One sentence: which worker of which node ended how."""
    who = f"the program of {node_id}"
    if failure.rank >= 0:
        who = f"rank {failure.rank} (local rank {failure.local_rank}) on {node_id}"
    if failure.signal is not None:
        return f"{who} was killed by {failure.signal}"
    if failure.exit_code is not None:
        return f"{who} exited with code {failure.exit_code}"
    return f"{node_id} could not start its workers: {failure.message}"
