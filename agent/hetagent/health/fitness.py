"""What a check of this node is asked, and what it has found."""

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fitness:
    """Whether this node can take part in a round.

    Attributes:
        why: why it cannot, in a line; empty: it can.
        fatal: there is no use in asking again: the node leaves.
        warnings: what else a person should know.
    """

    why: str = ""
    fatal: bool = False
    warnings: tuple[str, ...] = ()


READY = Fitness()


class Check:
    """Something that is found out about this node between rounds.

    Attributes:
        repeats: it is asked before each round, and now and then until one begins; else before each round only.
        done: there is nothing more to find out.
        facts: what people and the server should know of this node for it, by name.
    """

    repeats = False
    done = False
    facts: Mapping[str, str] = {}

    @property
    def within_s(self) -> float:
        """How long its answer may take once a round has ended (seconds)."""
        return 0.0

    def ask(self, workers: Collection[int], cancelled: threading.Event) -> Fitness:
        """Find out; soon after it is cancelled it returns, whatever it has found.

        Args:
            workers: pids that this node's workers had in the last round.
        """
        return READY
