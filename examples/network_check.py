"""Measure the network between all pairs of nodes, with the backend that training uses, and print what is slow.

Run it as a job of one worker per node, on the nodes that are to train:

    hetagent --gpus 1 --nnodes 4 --server http://host:29400 examples/network_check.py

Pairs without a node in common are measured at the same time, so it takes about as many seconds as there are nodes. A
pair is slow below half of the usual rate, the median of all pairs; a node whose every pair is slow is to blame itself.
"""

import os
import statistics
import threading
import time
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

SLOW = 0.5
MEASURE_S = 0.5
TIMEOUT_S = 12.0
"""How long a pair waits for each other, connecting included (seconds)."""

Pair = tuple[int, int]


def tournament(count: int) -> list[list[Pair]]:
    """All pairs of ranks 0 to count - 1, in turns in which each rank occurs at most once."""
    ranks = [*range(count), *([-1] if count % 2 else [])]
    turns = []
    for _ in range(len(ranks) - 1):
        half = len(ranks) // 2
        pairs = zip(ranks[:half], reversed(ranks[half:]), strict=True)
        turns.append([(min(pair), max(pair)) for pair in pairs if min(pair) >= 0])
        ranks.insert(1, ranks.pop())
    return turns


def send(peer: int, data: torch.Tensor, count: torch.Tensor) -> float:
    """How fast a peer that receives gets data from here (bytes/s)."""
    seconds, times = 0.0, 1
    while seconds < MEASURE_S / 2:  # until it is sent often enough to tell
        count.fill_(times)
        dist.send(count, peer)
        began = time.monotonic()
        for _ in range(times):
            dist.send(data, peer)
        dist.recv(count, peer)
        times = int(count)  # waits for the device
        seconds = time.monotonic() - began
        rate = times * data.numel() / seconds
        times *= 4 if seconds < MEASURE_S / 8 else 2
    dist.send(count.zero_(), peer)
    return rate


def receive(peer: int, data: torch.Tensor, count: torch.Tensor) -> None:
    """Receive what a peer sends."""
    dist.recv(count, peer)
    while times := int(count):
        for _ in range(times):
            dist.recv(data, peer)
        dist.send(count, peer)
        dist.recv(count, peer)


def measure(me: int, store: dist.Store) -> float:
    """How fast this end of a pair sends to the other, in a process group of these two (bytes/s); 0: not at all.

    Args:
        me: 0 or 1.
        store: of this pair.
    """
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    backend, timeout = "nccl" if cuda else "gloo", timedelta(seconds=TIMEOUT_S)
    rate = 0.0
    try:
        dist.init_process_group(backend, store=store, rank=me, world_size=2, timeout=timeout)
        data = torch.zeros((64 if cuda else 4) << 20, dtype=torch.uint8, device=device)
        count = torch.zeros(1, dtype=torch.int64, device=device)
        for sender in (0, 1):
            if sender == me:
                rate = send(1 - me, data, count)
            else:
                receive(1 - me, data, count)
    except RuntimeError as error:
        print(error, flush=True)
        rate = 0.0
    if dist.is_initialized():
        dist.destroy_process_group()
    return rate


def in_time(me: int, prefix: str, store: dist.Store) -> float:
    """The same, and 0 where it does not end: gloo waits without a limit for a peer that cannot connect."""
    found = [0.0]
    thread = threading.Thread(
        target=lambda: found.insert(0, measure(me, dist.PrefixStore(prefix, store))), daemon=True
    )
    thread.start()
    thread.join(2 * TIMEOUT_S)
    return found[0]


def per_s(rate: float) -> str:
    """A rate as people know it: `9.4 Gbit/s`."""
    if not rate:
        return "nothing"
    return f"{rate * 8 / 1e9:.3g} Gbit/s" if rate >= 1e9 / 8 else f"{rate * 8 / 1e6:.3g} Mbit/s"


def verdict(rates: Mapping[Pair, float], names: list[str]) -> list[str]:
    """What is slow, a line each."""
    usual = statistics.median_high(rates.values())
    best = {rank: max(rate for pair, rate in rates.items() if rank in pair) for rank in range(len(names))}
    slow = {rank for rank, rate in best.items() if rate < SLOW * usual}
    lines = [
        f"{names[rank]} is slow: at most {per_s(best[rank])}, {per_s(usual)} is usual; "
        "check its cables, its switch port and its --interface"
        for rank in sorted(slow)
    ]
    lines += [
        f"{names[a]} and {names[b]} are slow: {per_s(rate)} between them, {per_s(usual)} is usual; "
        "check the way between them"
        for (a, b), rate in sorted(rates.items())
        if rate < SLOW * usual and not slow & {a, b}
    ]
    return lines


def main() -> None:
    """Measure all pairs; rank 0 prints the table."""
    store, rank, size = next(dist.rendezvous("env://"))
    timeout = timedelta(seconds=4 * TIMEOUT_S)
    store.set(f"name/{rank}", os.environ.get("HET_NODE_ID", f"rank {rank}"))
    names = [store.get(f"name/{other}").decode() for other in range(size)]
    rates: dict[Pair, float] = {}
    for turn, pairs in enumerate(tournament(size)):
        for pair in pairs:
            if rank in pair:
                store.set(f"rate/{pair}/{rank}", str(in_time(pair.index(rank), f"pair/{pair}", store)))
        store.set(f"turn/{turn}/{rank}", "over")
        store.wait([f"turn/{turn}/{other}" for other in range(size)], timeout)
        rates |= {pair: min(float(store.get(f"rate/{pair}/{end}")) for end in pair) for pair in pairs}
    if rank == 0 and rates:
        for (a, b), rate in sorted(rates.items(), key=lambda item: item[1]):
            print(f"{names[a]} - {names[b]}: {per_s(rate)}")
        print("\n".join(verdict(rates, names)) or "no node and no pair is slow", flush=True)
    store.set(f"end/{rank}", "over")
    store.wait([f"end/{other}" for other in range(size)], timeout)  # the store lives with the job


if __name__ == "__main__":
    main()
