"""Who is waited for among the workers of a round: samples -> `find_hang` -> what the group should know. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from hetrdzv.core.hangs import SAME_S, find_hang
from hetrdzv.core.model import Stall
from hetrdzv.protocol.progress import UNKNOWN, Worker
from hetrdzv.protocol.reasons.hangs import Hang
from hetrdzv.service.progress.samples import WorkerSample

LOOK_S = 0.2
"""How long to collect news of workers before they are judged together (seconds): many nodes report at the same time."""

AGAIN_S = 1.0
"""When to look again while workers stand still, but not for long enough to say that they wait (seconds)."""

RENEW_S = 2.0
"""What is known of a stall is noted again if the group would not know it for longer than this (seconds)."""


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """What a look at the workers of a round came to."""

    hang: Hang | None
    known_until: float  # until when it is known to last (seconds on the server's clock)
    stood_s: float  # for how long all who are in it were seen to stand still, at least (seconds)
    unclear: bool  # whether some may go on, of whom nothing is known, and nobody is known to
    again_s: float  # when to look again, whatever they report (seconds from then); infinite: not at all


def check_for_hang(seen: Sequence[WorkerSample], world_size: int, now: float) -> HangVerdict:
    workers = [entry.worker(now) for entry in seen]
    nodes = {entry.sample.rank: entry.node_id for entry in seen}
    hang = find_hang(workers, world_size, nodes.__getitem__)
    # it may be a stall once that is over
    again_s = min((worker.long_s + LOOK_S for worker in workers if worker.long_s > 0), default=inf)
    if hang is None and any(worker.idle_s > 0 for worker in workers):
        again_s = min(again_s, AGAIN_S)
    least_s = hang.for_s if hang is not None else inf
    in_it = [entry for entry, worker in zip(seen, workers, strict=True) if worker.idle_s >= least_s]
    return HangVerdict(
        hang,
        known_until=min((entry.known_until for entry in in_it), default=now),
        stood_s=min((entry.sample.idle_s for entry in in_it), default=0.0),
        unclear=any(worker.state == UNKNOWN for worker in workers) and not any(map(_goes_on, workers)),
        again_s=again_s,
    )


def is_already_noted(noted: Stall | None, stall: Stall | None, now: float) -> bool:
    """Whether the group knows already what was found, and will know it for a while."""
    if noted is None or stall is None:
        return noted is stall
    same = noted.hang == stall.hang and (noted.stack == stall.stack or not stall.stack)
    until, newer = noted.known_until, stall.known_until
    known = until is None or newer is None or until >= min(now + RENEW_S, newer)
    return same and known and abs(noted.since - stall.since) < SAME_S


def _goes_on(worker: Worker) -> bool:
    known = worker.state == "runs" or worker.step is not None
    return worker.long_s > 0 or (known and worker.idle_s == 0 and not worker.ended)
