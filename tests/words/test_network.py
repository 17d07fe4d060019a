"""The sentences for the network between nodes, and its rates."""

from typing import get_args

import pytest

from hetrdzv.protocol.facts.parts import Quoted
from hetrdzv.protocol.rooms.network import (
    NotAllChecked,
    NotChecked,
    OfNetwork,
    Reached,
    SlowLink,
    SlowWay,
    Spread,
)
from hetrdzv.words.network import per_s, problem, spread

GBIT = 1e9 / 8

SENTENCES: list[tuple[OfNetwork, str]] = [
    (
        SlowLink(
            node_id="gpu3",
            first=Reached(node_id="gpu2", rate=GBIT),
            again=Reached(node_id="gpu1"),
            usual=10 * GBIT,
        ),
        (
            "the network of node gpu3 is slow: 1 Gbit/s with gpu2, and nothing with gpu1; 10 Gbit/s is usual here: "
            "check its cables, its switch port and its --interface"
        ),
    ),
    (
        SlowWay(node_id="gpu2", reached=Reached(node_id="gpu3", rate=GBIT / 10), usual=10 * GBIT),
        "gpu2 and gpu3 reach 100 Mbit/s between them; 10 Gbit/s is usual here: check the way between them",
    ),
    (
        SlowWay(node_id="gpu0", reached=Reached(node_id="gpu1")),
        "gpu0 and gpu1 reach nothing between them: check the way between them",
    ),
    (
        NotAllChecked(missing=1, nodes=3),
        "1 of 3 nodes has not taken part in the check of the network: give --check-network on every node",
    ),
    (
        NotAllChecked(missing=2, nodes=3),
        "2 of 3 nodes have not taken part in the check of the network: give --check-network on every node",
    ),
    (
        NotChecked(master="gpu0", why=Quoted("no answer in time")),
        (
            "the network was not checked with node gpu0, the master: no answer in time; give --check-network on every "
            "node"
        ),
    ),
]


@pytest.mark.parametrize(("value", "sentence"), SENTENCES, ids=lambda value: getattr(value, "kind", ""))
def test_sentence(value: OfNetwork, sentence: str) -> None:
    assert problem(value) == sentence


def test_every_kind_has_a_sentence() -> None:
    assert {type(value) for value, _ in SENTENCES} == set(get_args(OfNetwork))


def test_rates_as_people_know_them() -> None:
    assert [per_s(rate) for rate in (1.175e9, 1.25e7, 100)] == ["9.4 Gbit/s", "100 Mbit/s", "0.8 kbit/s"]
    assert spread(Spread(pairs=1, slowest=1.25e9, fastest=1.25e9)) == "10 Gbit/s between the two nodes"
    assert (
        spread(Spread(pairs=2, slowest=1.25e8, fastest=1.25e9)) == "1 Gbit/s to 10 Gbit/s between neighbours"
    )
    assert spread(Spread(pairs=1)) == "no two neighbours reached each other"
