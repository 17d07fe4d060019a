"""What measurements mean: one number for each slot, and which slots are slower than they should be. Pure."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean, median_high

FLOP_PER_BYTE = 500.0
"""How much a slot computes for each byte that it moves, in the work by which slots are compared: training spends most
of its time on multiplications, and the rest on memory."""

SLOW = 0.75
"""A slot below this share of the usual speed of its kind is far too slow."""


def speed(matmul: float, bandwidth: float) -> float:
    """The effective speed of a slot that multiplies and moves memory in turn (TFLOP/s), with four digits.

    Args:
        matmul: FLOP/s.
        bandwidth: bytes/s.
    """
    return float(f"{FLOP_PER_BYTE / (FLOP_PER_BYTE / matmul + 1 / bandwidth) / 1e12:.4g}")


def speeds(results: Sequence[Mapping[str, object]]) -> list[float] | str:
    """The speed of each slot, or why there is none.

    Args:
        results: by local rank, as benchmark.py prints them.
    """
    measured: list[float] = []
    for local_rank, result in enumerate(results):
        if (why := result.get("error")) is not None:
            return f"local rank {local_rank}: {why}"
        matmul, bandwidth = result.get("matmul"), result.get("bandwidth")
        if not (isinstance(matmul, float) and isinstance(bandwidth, float) and min(matmul, bandwidth) >= 1):
            return f"local rank {local_rank}: these values make no sense: {dict(result)}"
        measured.append(speed(matmul, bandwidth))
    return measured


def of_cpus(measured: Sequence[float]) -> list[float]:
    """The speed of each CPU slot of a node: the mean, since all have the same CPUs and what differs is chance."""
    return [float(f"{fmean(measured):.4g}")] * len(measured)


def slow(measured: Sequence[float], kinds: Sequence[str]) -> list[str]:
    """A sentence for each slot that is far slower than the others of its kind on this node.

    Args:
        measured: the speed of each slot.
        kinds: on which device each slot is.
    """
    sentences = []
    for local_rank, (own, kind) in enumerate(zip(measured, kinds, strict=True)):
        usual = median_high(value for value, other in zip(measured, kinds, strict=True) if other == kind)
        if own < SLOW * usual:
            sentences.append(
                f"local rank {local_rank} ({kind}) is {1 - own / usual:.0%} slower than the others of its kind "
                "on this node: check its clocks, temperature and power limit, and whether something else uses it"
            )
    return sentences


def described(kinds: Sequence[str]) -> str:
    """Devices in the order of local ranks: `2 x NVIDIA H100; 1 x Tesla T4`."""
    return "; ".join(f"{len(list(alike))} x {kind}" for kind, alike in groupby(kinds))
