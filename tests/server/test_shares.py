"""How hetctl shows shares: where they come from, and what each node has."""

import pytest

from hetrdzv.cli.hetctl.shares import shares_of
from hetrdzv.protocol.directive import MasterReply, MemberReply
from hetrdzv.protocol.pages import RoundReply
from hetrdzv.protocol.rooms.shares import SharesShown

MASTER = MasterReply(node_id="gpu0", address="any", port=1, script_port=1)


def shown(source: str, number: int, *weights: list[float]) -> str:
    slots = [len(each) for each in weights] or [3]
    members = [
        MemberReply(node_id=f"gpu{at}", group_rank=at, rank_offset=sum(slots[:at]), slots=each, address="any")
        for at, each in enumerate(slots)
    ]
    runs = tuple((1, weight) for each in weights for weight in each)
    shares = SharesShown(round=3, number=number, weights=runs, source=source)
    return shares_of(
        RoundReply(
            number=3, world_size=sum(slots), restart_count=0, master=MASTER, members=members, shares=shares
        )
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (shown("equal", 0), ""),
        (shown("equal", 2), "equal, decision 2 of this round: the same for all ranks"),
        (shown("by hand", 0, [1.0, 1.0], [0.25]), "by hand (--weight): gpu0 1, gpu1 0.25"),
        (shown("by hand", 0), "by hand (--weight): the same for all ranks"),
        (shown("measured", 0, [1.0, 0.333], [0.5]), "by measured speed: gpu0 0.333 to 1, gpu1 0.5"),
        (
            shown("pace", 4, *([1.0],) * 6),
            "by the workers' pace, decision 4 of this round: gpu0 1, gpu1 1, gpu2 1, gpu3 1, gpu4 1, ...",
        ),
        (shown("what a newer server says", 0, [1.0], [0.5]), "what a newer server says: gpu0 1, gpu1 0.5"),
    ],
)
def test_where_shares_come_from_and_what_each_node_has(text: str, expected: str) -> None:
    assert text == expected


def test_an_older_server_says_nothing_of_shares() -> None:
    assert shares_of(RoundReply(number=1, world_size=1, restart_count=0, master=MASTER, members=[])) == ""
