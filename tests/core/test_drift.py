"""What differs between nodes and matters: values of bounded size."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hetrdzv.core.model import Node
from hetrdzv.core.version_drift import (
    COMPARED_VERSIONS,
    describe_version_differences,
    find_version_differences,
)
from hetrdzv.protocol.codec import to_json
from hetrdzv.protocol.reasons.reason import MAX_MESSAGE_CHARACTERS
from tests.core.driver import Story


def having(name: str, *versions: str) -> list[Node]:
    return nodes({f"gpu{number}": {name: version} for number, version in enumerate(versions, 1)})


def nodes(devices: Mapping[str, Mapping[str, str]]) -> list[Node]:
    return [
        Node(node_id=node_id, incarnation="1", slots=1, address="h", port=1, device=device)
        for node_id, device in devices.items()
    ]


@pytest.mark.parametrize(
    ("name", "versions", "differ"),
    [
        ("torch", ["2.13.0", "", "2.12.1", "2.13.0"], {"2.12.1": [3], "2.13.0": [1, 4]}),
        ("torch", ["2.13.0", "2.12.1"], {"2.13.0": [1], "2.12.1": [2]}),
        ("cuda", ["12.6", "13.0", "13.0"], {"12.6": [1], "13.0": [2, 3]}),
        ("nccl", ["2.27.5", "2.27.5", "2.27.7"], {"2.27.7": [3], "2.27.5": [1, 2]}),
        ("python", ["3.11.2", "3.11.9", "3.12.1"], {"3.12": [3], "3.11": [1, 2]}),
        ("script", ["3fa2b1c8", "3fa2b1c8", "94d0c2aa"], {"94d0c2aa": [3], "3fa2b1c8": [1, 2]}),
        ("driver", ["580.65.06", "580.82.07", "570.1"], {"570": [3], "580": [1, 2]}),
        ("torch", ["1.0", "2.0", "2.0", "3.0"], {"1.0": [1], "3.0": [4], "2.0": [2, 3]}),
        ("torch", ["2.13.0+cu130", "2.13.0+cpu", "2.13.0"], {}),
        ("name", ["8 x H200", "4 x A100"], {}),
        ("torch", ["2.13.0", "unknown"], {}),
    ],
)
def test_what_differs(name: str, versions: list[str], differ: dict[str, list[int]]) -> None:
    known = {version: [f"gpu{one}" for one in ones] for version, ones in differ.items()}
    assert find_version_differences(having(name, *versions)) == (
        (describe_version_differences(name, known),) if known else ()
    )


def test_another_role_may_run_another_script_and_more_versions_are_counted() -> None:
    trainer, critic, other = having("script", "3fa2b1c8", "94d0c2aa", "00ff00ff")
    assert find_version_differences([trainer, replace(critic, role="critic")]) == ()
    (found,) = find_version_differences(
        [trainer, replace(critic, role="critic"), replace(other, role="critic")]
    )
    assert found.message == ("gpu2 has a script with checksum 94d0c2aa, gpu3 has 00ff00ff")
    (found,) = find_version_differences(having("torch", "1.0", "2.0", "3.0", "4.0", "5.0", "6.0", "6.0"))
    assert found.message.endswith("gpu4 has 4.0, 2 more versions on other nodes")


def test_of_thousands_of_unlike_nodes_it_says_no_more_than_of_a_few() -> None:
    found = find_version_differences(
        nodes({f"{n}-{'x' * 110}": dict.fromkeys(COMPARED_VERSIONS, f"{n}.0.{n % 7}") for n in range(10_000)})
    )
    assert len(found) == len(COMPARED_VERSIONS)
    assert max(len(one.message) for one in found) <= MAX_MESSAGE_CHARACTERS
    assert max(len(to_json(one)) for one in found) < 8_000
    assert len(to_json(find_version_differences(having("torch", "9" * 100_000, "1"))[0])) < 1_000


def test_a_start_says_what_differs_in_its_round() -> None:
    story = Story(min_nodes=2, max_nodes=2)
    story.join("a", device={"torch": "2.13.0"})
    told = story.join("b", device={"torch": "2.12.1"})
    assert told.start is not None
    assert [one.code for one in told.warnings or ()] == ["versions_differ"]
    assert story.told("a").start is not None
    story.leave("b")
    story.join("a")
    told = story.join("c", device={"torch": "2.13.0"})
    assert told.start is not None
    assert told.warnings is None
