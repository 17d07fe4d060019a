"""The sentences for snapshots: what is safe, what is missing, what was lost."""

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from hetrdzv.protocol.facts.causes import FailedWorker
from hetrdzv.protocol.facts.events import Facts, RoundEnded, RoundFormed
from hetrdzv.protocol.facts.parts import Quoted
from hetrdzv.protocol.facts.warnings import AnyWarning
from hetrdzv.protocol.pages import EventReply
from hetrdzv.protocol.rooms.snapshots import (
    BeganFromSnapshot,
    Incomplete,
    Lack,
    NobodyHasAll,
    NotOnDisk,
    NotReadable,
    NotTaken,
    PartsMissing,
    SafeShown,
    SnapshotWanted,
    Stamp,
    ValuesDiffer,
)
from hetrdzv.protocol.texts.who import Nodes, Ranks
from hetrdzv.words.past import past
from hetrdzv.words.snapshots import lacks, safe

STAMP = Stamp(round=2, step=100)
EARLIER = Stamp(round=9, step=1200, origin="0f3a")
BOTH = Nodes.of(["gpu1", "gpu2"])
NAN = FailedWorker(node_id="gpu2", rank=3, local_rank=1, exit_code=1, said=Quoted("ValueError: loss is nan"))
SHARD_GONE = Incomplete(stamp=Stamp(round=2, step=107), lack=PartsMissing(ranks=Ranks.of([1])))

NOT_ON_DISK = NotOnDisk(stamp=STAMP, nodes=Nodes.of(["gpu1"]), why=Quoted("No space left on device"))
UNWRITTEN = "the snapshot of step 100 of round 2 is not on disk: No space left on device (gpu1)"

NOT_TAKEN = NotTaken(nodes=Nodes.of(["gpu1", "gpu2"]), why=Quoted("they need 5 MB"))
UNTAKEN = "no snapshots are taken on gpu1, gpu2: they need 5 MB"

SENTENCES: list[tuple[AnyWarning, str]] = [
    (NOT_ON_DISK, UNWRITTEN),
    (NOT_TAKEN, UNTAKEN),
    (
        ValuesDiffer(stamp=STAMP, name="seed", more=2, nodes=Nodes.of(["gpu2"])),
        (
            "the snapshot of step 100 of round 2 is not complete: the value 'seed' (and 2 more values) is not the same "
            "on all ranks: another one on gpu2; name it in per_rank, or make it the same"
        ),
    ),
]

HAPPENED: list[tuple[Facts, str]] = [
    (NOT_ON_DISK, UNWRITTEN),
    (NOT_TAKEN, UNTAKEN),
    (
        BeganFromSnapshot(stamp=STAMP, nodes=BOTH, lost=4),
        "round 3 begins from the snapshot of step 100 of round 2, which gpu1, gpu2 have: 4 steps lost",
    ),
    (
        BeganFromSnapshot(stamp=STAMP, nodes=BOTH, lost=7, newer=SHARD_GONE),
        (
            "round 3 begins from the snapshot of step 100 of round 2, which gpu1, gpu2 have: "
            "7 steps lost (of step 107 nobody has the part of rank 1)"
        ),
    ),
    (
        BeganFromSnapshot(stamp=None, lost=107, newer=SHARD_GONE),
        "round 3 begins anew: 107 steps lost (of step 107 nobody has the part of rank 1)",
    ),
    (
        BeganFromSnapshot(stamp=STAMP, nodes=Nodes.of(["gpu1"]), lost=0),
        "round 3 begins from the snapshot of step 100 of round 2, which gpu1 has: no step lost",
    ),
    (
        BeganFromSnapshot(stamp=STAMP, on_disk=True, lost=None),
        "round 3 begins from the snapshot of step 100 of round 2, which is on disk: an unknown number of steps lost",
    ),
    (
        BeganFromSnapshot(stamp=None, lost=None),
        "round 3 begins anew: an unknown number of steps lost",
    ),
    (
        BeganFromSnapshot(stamp=EARLIER, on_disk=True, lost=0),
        "round 3 begins from the snapshot of step 1200 of round 9 of an earlier job, which is on disk",
    ),
    (
        SnapshotWanted(stamp=STAMP),
        "the next round is to begin from the snapshot of step 100 of round 2",
    ),
]


@pytest.mark.parametrize(
    ("lack", "clause"),
    [
        (NobodyHasAll(), "no node has all that its ranks have alike"),
        (PartsMissing(ranks=Ranks.of([1])), "nobody has the part of rank 1"),
        (PartsMissing(ranks=Ranks.of([0, 1, 2])), "nobody has the parts of ranks 0 to 2"),
        (
            ValuesDiffer(stamp=STAMP, name="seed", nodes=BOTH),
            "the value 'seed' is not the same on all ranks: another one on gpu1, gpu2",
        ),
        (NotReadable(nodes=BOTH), "workers on gpu1, gpu2 could load no copy of it"),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_what_is_missing(lack: Lack, clause: str) -> None:
    assert lacks(lack) == clause


def test_every_reason_has_words() -> None:
    assert len(get_args(Lack)) == 4


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (SafeShown(safe=STAMP, nodes=BOTH), "step 100 is safe (gpu1, gpu2)"),
        (
            SafeShown(safe=STAMP, nodes=BOTH, began=Stamp(round=1, step=90), lost=1),
            "step 100 is safe (gpu1, gpu2); the newest round began from step 90, 1 step lost",
        ),
        (
            SafeShown(safe=STAMP, nodes=BOTH, began=STAMP, lost=7, newer=SHARD_GONE),
            (
                "step 100 is safe (gpu1, gpu2); the newest round began from step 100, "
                "7 steps lost (of step 107 nobody has the part of rank 1)"
            ),
        ),
        (
            SafeShown(began=STAMP, lost=0),
            (
                "no node that is here has a step (what was written to --snapshot-to is found by the next ones); "
                "the newest round began from step 100, no step lost"
            ),
        ),
        (
            SafeShown(safe=STAMP, nodes=BOTH, on_disk=EARLIER, began=EARLIER, lost=0),
            (
                "step 100 is safe (gpu1, gpu2; step 1200 of an earlier job on disk); the newest round began from step "
                "1200 of an earlier job"
            ),
        ),
        (
            SafeShown(safe=STAMP, nodes=BOTH, began=STAMP, lost=None),
            "step 100 is safe (gpu1, gpu2); the newest round began from step 100, an unknown number of steps lost",
        ),
    ],
)
def test_what_is_safe(value: SafeShown, sentence: str) -> None:
    assert safe(value) == sentence


def test_a_history_says_what_the_end_of_a_round_has_cost() -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)

    def event(number: int, facts: Any, of: int) -> EventReply:
        at = (began + timedelta(seconds=number)).isoformat()
        return EventReply(number=number, at=at, kind=facts.kind, text="", round=of, facts=facts)

    events = [
        event(1, RoundFormed(world_size=2, places=()), 1),
        event(2, RoundEnded(cause=NAN), 1),
        event(3, RoundFormed(world_size=2, places=(), cause="failed"), 2),
        event(5, BeganFromSnapshot(stamp=STAMP, nodes=BOTH, lost=24, newer=SHARD_GONE), 2),
        event(6, RoundEnded(cause=NAN), 2),
        event(7, RoundFormed(world_size=2, places=(), cause="failed"), 3),
        event(8, BeganFromSnapshot(stamp=STAMP, nodes=BOTH, lost=0), 3),
    ]
    rounds = past(events, began + timedelta(seconds=9)).rounds
    assert [one.costs for one in rounds] == [
        ("24 steps lost (of step 107 nobody has the part of rank 1)",),
        (),
        (),
    ]
