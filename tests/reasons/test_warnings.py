"""What people should know of nodes, workers and snapshots: each message once."""

import pytest

from hetrdzv.protocol.reasons import snapshots, warnings
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.snapshots import (
    Incomplete,
    Lack,
    NobodyHasAll,
    NotReadable,
    PartsMissing,
    Stamp,
)
from hetrdzv.protocol.texts.who import NOBODY, Nodes, Ranks

ONE, TWO = Nodes.of(["gpu1"]), Nodes.of(["gpu1", "gpu2"])
STAMP, EARLIER = Stamp(round=2, step=100), Stamp(round=9, step=1200, origin="x")
SHARD_GONE = Incomplete(stamp=Stamp(round=2, step=107), lack=PartsMissing(ranks=Ranks.of([1])))
OF_STEP = "the snapshot of step 100 of round 2"


@pytest.mark.parametrize(
    ("found", "code", "message"),
    [
        (
            warnings.versions_differ("torch", [("2.12.1", ONE), ("2.13.0", TWO)]),
            "versions_differ",
            "gpu1 has torch 2.12.1, gpu1, gpu2 have 2.13.0",
        ),
        (
            warnings.versions_differ("cuda", [("12.8", ONE), ("12.9", TWO)], more=2),
            "versions_differ",
            "gpu1 has CUDA 12.8, gpu1, gpu2 have 12.9, 2 more versions on other nodes",
        ),
        (
            warnings.no_label("rack", ONE),
            "no_label",
            "gpu1 has no label rack, by which ranks are ordered: it comes last",
        ),
        (
            warnings.no_label("rack", TWO, units=True),
            "no_label",
            "gpu1, gpu2 have no label rack, by which units are formed: each is a unit by itself",
        ),
        (
            warnings.not_watched(Ranks.of([3]), "never"),
            "not_watched",
            "rank 3 cannot be watched: its agent has not reported on it",
        ),
        (
            warnings.not_watched(Ranks.of([3, 4]), "no_torch"),
            "not_watched",
            "ranks 3 and 4 cannot be watched: their script has not imported torch",
        ),
        (
            warnings.not_watched(Ranks.of([3]), "torch is too old"),
            "not_watched",
            "rank 3 cannot be watched: torch is too old",
        ),
        (
            snapshots.not_on_disk(STAMP, ONE, "No space left on device"),
            "not_on_disk",
            f"{OF_STEP} is not on disk: No space left on device (gpu1)",
        ),
        (
            snapshots.not_taken(TWO, "they need 5 MB"),
            "not_taken",
            "no snapshots are taken on gpu1, gpu2: they need 5 MB",
        ),
        (
            snapshots.snapshot_wanted(STAMP),
            "snapshot_wanted",
            f"the next round is to begin from {OF_STEP}",
        ),
        (
            snapshots.began_from_snapshot(3, STAMP, TWO, 7, SHARD_GONE),
            "began_from_snapshot",
            (
                f"round 3 begins from {OF_STEP}, which gpu1, gpu2 have: 7 steps lost (of step 107 nobody has the part "
                "of rank 1)"
            ),
        ),
        (
            snapshots.began_from_snapshot(3, STAMP, ONE, 0, None),
            "began_from_snapshot",
            f"round 3 begins from {OF_STEP}, which gpu1 has: no step lost",
        ),
        (
            snapshots.began_from_snapshot(3, None, NOBODY, None, None),
            "began_from_snapshot",
            "round 3 begins from nothing: an unknown number of steps lost",
        ),
        (
            snapshots.began_from_snapshot(3, EARLIER, NOBODY, 0, None, on_disk=True),
            "began_from_snapshot",
            "round 3 begins from the snapshot of step 1200 of round 9 of an earlier job, which is on disk",
        ),
    ],
)
def test_messages(found: Reason, code: str, message: str) -> None:
    assert (found.code, found.message) == (code, message)


@pytest.mark.parametrize(
    ("lack", "clause"),
    [
        (NobodyHasAll(), "no node has all that its ranks have alike"),
        (PartsMissing(ranks=Ranks.of([0, 1, 2])), "nobody has the parts of ranks 0 to 2"),
        (NotReadable(nodes=TWO), "workers on gpu1, gpu2 could load no copy of it"),
    ],
)
def test_what_is_missing(lack: Lack, clause: str) -> None:
    assert snapshots.lacks(lack) == clause
