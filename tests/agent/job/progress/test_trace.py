"""What torch's flight recorder answers, and what is read from it."""

import json
from typing import Any

import pytest

from hetagent.job.progress.trace import Trace


def entry(
    number: int, name: str, sequence: int, operation: int, what: str = "gloo:all_reduce", **more: Any
) -> dict[str, Any]:
    """An entry as torch 2.13 writes it, without what is not read."""
    return {
        "pg_id": number,
        "process_group": [name, "undefined"],
        "collective_seq_id": sequence,
        "op_id": operation,
        "profiling_name": what,
        "input_sizes": [[10]],
        "is_p2p": False,
        "retired": False,
        "time_created_ns": 1_000_000_000 * operation,
        **more,
    }


def answer(
    *entries: dict[str, Any], config: dict[str, Any] | None = None, **counts: tuple[int, int, int]
) -> bytes:
    """An answer: the entries, and by `gN` the last collective enqueued, started and completed in group N."""
    status = {
        name[1:]: {
            "last_enqueued_collective": str(one[0]),
            "last_started_collective": str(one[1]),
            "last_completed_collective": str(one[2]),
        }
        for name, one in counts.items()
    }
    nameless = {"": {"desc": "", "name": "", "ranks": "[]"}}
    return json.dumps({"entries": entries, "pg_config": config or nameless, "pg_status": status}).encode()


def test_groups_have_the_names_that_all_members_use_not_the_numbers_of_one_process() -> None:
    """One made another group before: what both know as group 4 has number 3 in the one and 4 in the other."""
    of_one = answer(entry(0, "0", 7, 7), entry(3, "4", 2, 2, "gloo:barrier"), g0=(7, -1, 7), g3=(2, -1, 2))
    of_other = answer(entry(0, "0", 7, 7), entry(4, "4", 1, 1), g0=(7, -1, 7), g4=(1, -1, 0))
    one, other = Trace(2).read(of_one).groups, Trace(2).read(of_other).groups
    assert [(group.name, group.size, group.enqueued, group.completed) for group in one] == [
        ("0", 2, 7, 7),
        ("4", 0, 2, 2),
    ]
    assert [(group.name, group.enqueued, group.completed) for group in other] == [
        ("0", 7, 7),
        ("4", 1, 0),
    ]
    assert [group.op for group in one] == ["all_reduce [[10]]", "barrier [[10]]"]


def test_a_name_is_remembered_once_its_entries_have_gone() -> None:
    trace = Trace(2)
    trace.read(answer(entry(1, "5", 3, 3), g1=(3, -1, 3)))
    seen = trace.read(answer(entry(0, "0", 9, 9), g0=(9, -1, 9), g1=(4, -1, 3)))
    assert {group.name: group.enqueued for group in seen.groups} == {"0": 9, "5": 4}
    assert not seen.nameless


def test_a_group_without_a_name_counts_but_is_not_told() -> None:
    seen = Trace(2).read(answer(g7=(3, -1, 3)))
    assert seen.groups == []
    assert seen.nameless
    assert seen.counts == {"7": (3, 0, 3)}


def test_what_was_sent_to_single_members_is_no_collective() -> None:
    """gloo counts them: 12 operations, 11 of them collectives, of which one is not done."""
    (group,) = Trace(2).read(answer(entry(0, "0", 11, 12), g0=(12, -1, 11))).groups
    assert (group.enqueued, group.completed) == (11, 10)


def test_an_operation_is_done_once_its_entry_says_so() -> None:
    """The counts say that 6 of 7 are done, since the sixth was done after the seventh."""
    done = [entry(0, "0", number, number, retired=True) for number in (6, 7)]
    (group,) = Trace(2).read(answer(*done, g0=(7, -1, 6))).groups
    assert (group.enqueued, group.completed) == (7, 7)
    (group,) = Trace(2).read(answer(*done, g0=(8, -1, 6))).groups  # the entry of the eighth is not there yet
    assert (group.enqueued, group.completed) == (8, 7)
    (group,) = Trace(2).read(answer(*done, entry(0, "0", 8, 8), g0=(8, -1, 5))).groups
    assert (group.enqueued, group.completed) == (8, 7)
    (group,) = Trace(2).read(answer(entry(0, "0", 6, 6), done[1], g0=(7, -1, 5))).groups
    assert (group.enqueued, group.completed) == (7, 5)


def test_nccl_counts_collectives_and_says_who_the_members_are() -> None:
    config = {"3": {"name": "3", "desc": "tp", "ranks": "[0, 1, 5]"}}
    p2p = entry(1, "3", 8, 40, "nccl:send 0->1", is_p2p=True)
    seen = Trace(8, "/nccl", counts_operations=False).read(
        answer(entry(1, "3", 8, 30, "nccl:all_gather"), p2p, config=config, g1=(8, 8, 7))
    )
    (group,) = seen.groups
    assert (group.name, group.size, group.enqueued, group.started, group.completed) == (
        "3/nccl",
        3,
        8,
        8,
        7,
    )
    assert group.op == "all_gather [[10]]"


def test_the_newest_operation_is_dated() -> None:
    assert Trace(2).read(answer(entry(0, "0", 7, 7), g0=(7, -1, 7))).newest_at == 7.0
    assert Trace(2).read(answer()).newest_at is None


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"[]",
        b'{"entries": [{}]}',
        b'{"entries": [{"time_created_ns": 1, "pg_id": 0, "process_group": []}]}',
        b'{"pg_status": {"0": {}}}',
        b"\xff",
    ],
)
def test_something_else_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Trace(2).read(wrong)
