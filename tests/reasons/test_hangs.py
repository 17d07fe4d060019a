"""A round that hangs."""

from hetrdzv.protocol.hangs import Hang
from hetrdzv.protocol.reasons import hangs
from hetrdzv.protocol.states import StallKind
from hetrdzv.protocol.texts.who import Ranks
from tests.support.hangs import behind


def test_a_round_that_hangs() -> None:
    found = hangs.hang(4, behind(3, "gpu2"), 460.0, until=510.0)
    clause = "ranks 0 and 1 wait for rank 3 (gpu2), which is at collective 17,203 of 17,204"
    assert (found.code, found.nodes, found.ranks, found.round) == ("behind", ("gpu2",), ((3, 3),), 4)
    assert (found.message, found.since, found.until) == (f"round 4: {clause}", 460.0, 510.0)
    unclear = hangs.hang(4, behind(3, "gpu2"), 460.0, known=False).message
    assert unclear == f"round 4: {clause}; whether they still wait is no longer known"
    waited = "ranks 0 and 1 have waited 40 s for rank 3 (gpu2), which is at collective 17,203 of 17,204"
    lasts = behind(3, "gpu2", for_s=40.0)
    assert hangs.stalled(4, lasts).message == f"round 4 hangs: {waited}"
    assert hangs.goes_on(4, lasts).message == f"round 4 goes on, after {waited}"
    nobody = Hang(kind=StallKind.NOTHING_COMPLETES, waiting=Ranks.of(range(3)), wait_for="collective 9")
    told = hangs.stalled(4, nobody)
    assert (told.nodes, told.ranks, told.data["kind"]) == ((), ((0, 2),), "nothing_completes")
