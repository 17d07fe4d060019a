"""What differs between nodes and matters, in sentences of bounded size."""

from collections.abc import Mapping

import pytest

from hetrdzv.core.health.drift import MOST_CHARACTERS, PARTS, drift
from hetrdzv.core.model import Node
from tests.core.driver import Story


def having(name: str, *versions: str) -> list[Node]:
    return nodes({f"gpu{number}": {name: version} for number, version in enumerate(versions, 1)})


def nodes(devices: Mapping[str, Mapping[str, str]]) -> list[Node]:
    return [
        Node(node_id=node_id, incarnation="1", slots=1, address="h", port=1, device=device)
        for node_id, device in devices.items()
    ]


@pytest.mark.parametrize(
    ("name", "versions", "said"),
    [
        ("torch", ["2.13.0", "2.13.0", "2.12.1"], ["gpu3 has torch 2.12.1, the others 2.13.0"]),
        ("torch", ["2.13.0", "2.12.1"], ["gpu1 has torch 2.13.0, gpu2 has 2.12.1"]),
        ("torch", ["2.13.0+cu130", "2.13.0+cpu", "2.13.0"], []),
        ("torch", ["2.13.0", "", "2.12.1", "2.13.0"], ["gpu3 has torch 2.12.1, the others 2.13.0"]),
        ("cuda", ["12.6", "13.0", "13.0"], ["gpu1 has CUDA 12.6, the others 13.0"]),
        ("nccl", ["2.27.5", "2.27.5", "2.27.7"], ["gpu3 has NCCL 2.27.7, the others 2.27.5"]),
        ("python", ["3.11.2", "3.11.9", "3.12.1"], ["gpu3 has Python 3.12, the others 3.11"]),
        ("driver", ["580.65.06", "580.82.07", "570.1"], ["gpu3 has GPU driver 570, the others 580"]),
        ("name", ["8 x H200", "4 x A100"], []),
        ("torch", ["2.13.0", "unknown"], []),
        ("torch", ["1.0", "2.0", "2.0", "1.0"], ["gpu1, gpu4 have torch 1.0, gpu2, gpu3 have 2.0"]),
        (
            "torch",
            ["1.0", "2.0", "2.0", "3.0", "2.0"],
            ["gpu1 has torch 1.0, gpu4 has 3.0, the others 2.0"],
        ),
        (
            "torch",
            ["1.0", "2.0", "3.0", "4.0", "5.0", "6.0", "6.0"],
            [
                "gpu1 has torch 1.0, gpu2 has 2.0, gpu3 has 3.0, 2 more versions on other nodes, the others 6.0"
            ],
        ),
    ],
)
def test_what_is_said(name: str, versions: list[str], said: list[str]) -> None:
    assert list(drift(having(name, *versions))) == said


def test_of_thousands_of_unlike_nodes_it_says_no_more_than_of_a_few() -> None:
    found = drift(nodes({f"{n}-{'x' * 110}": dict.fromkeys(PARTS, f"{n}.0.{n % 7}") for n in range(10_000)}))
    assert len(found) == len(PARTS)
    assert max(map(len, found)) <= MOST_CHARACTERS
    assert len(drift(having("torch", "9" * 100_000, "1"))[0]) <= MOST_CHARACTERS


def test_a_start_says_what_differs_in_its_round() -> None:
    story = Story(min_nodes=2, max_nodes=2)
    story.join("a", device={"torch": "2.13.0"})
    told = story.join("b", device={"torch": "2.12.1"})
    assert told.start is not None
    assert told.start.warnings == ("a has torch 2.13.0, b has 2.12.1",)
    assert story.told("a").start is not None
    story.leave("b")
    story.join("a")
    told = story.join("c", device={"torch": "2.13.0"})
    assert told.start is not None
    assert told.start.warnings == ()
