"""What a check of this node has found."""

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
