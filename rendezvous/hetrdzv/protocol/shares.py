"""Shares: how much of the work each rank of a round gets, by the weights that people gave."""

from dataclasses import dataclass

Weights = tuple[tuple[int, float], ...]
"""How many ranks in a row have which weight, in rank order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How much of the work each rank of a round gets, compared with the others."""

    round: int
    weights: Weights

    def of_ranks(self) -> list[float]:
        """The weight of each rank."""
        return [weight for count, weight in self.weights for _ in range(count)]
