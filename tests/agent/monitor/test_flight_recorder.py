"""What torch's flight recorder answers, and what is read from it."""

import json
from typing import Any

import pytest

from hetagent.monitor.flight_recorder import FlightRecorderParser
from hetrdzv.core.hangs import judge
from hetrdzv.protocol.progress import Worker


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
    one, other = FlightRecorderParser(2).read(of_one).groups, FlightRecorderParser(2).read(of_other).groups
    assert [(group.name, group.size, group.enqueued, group.completed) for group in one] == [
        ("0", 2, 7, 7),
        ("4", 0, 2, 2),
    ]
    assert [(group.name, group.enqueued, group.completed) for group in other] == [
        ("0", 7, 7),
        ("4", 1, 0),
    ]
    assert [group.op for group in one] == ["all_reduce [[10]]", "barrier [[10]]"]
    assert [FlightRecorderParser(2).read(said).newest_at for said in (of_one, answer())] == [7.0, None]


def test_a_name_is_remembered_once_its_entries_have_gone() -> None:
    trace = FlightRecorderParser(2)
    trace.read(answer(entry(1, "5", 3, 3), g1=(3, -1, 3)))
    seen = trace.read(answer(entry(0, "0", 9, 9), g0=(9, -1, 9), g1=(4, -1, 3)))
    assert {group.name: group.enqueued for group in seen.groups} == {"0": 9, "5": 4}
    assert not seen.nameless


def test_a_group_without_a_name_counts_but_is_not_told() -> None:
    seen = FlightRecorderParser(2).read(answer(g7=(3, -1, 3)))
    assert seen.groups == []
    assert seen.nameless
    assert seen.counts == {"7": (3, -1, 3)}


def test_what_was_sent_to_single_members_is_no_collective() -> None:
    """gloo counts them: 12 operations, 11 of them collectives, of which one is not done."""
    (group,) = FlightRecorderParser(2).read(answer(entry(0, "0", 11, 12), g0=(12, -1, 11))).groups
    assert (group.enqueued, group.completed) == (11, 10)


def test_an_operation_is_done_once_its_entry_says_so() -> None:
    """The counts say that 6 of 7 are done, since the sixth was done after the seventh."""
    done = [entry(0, "0", number, number, retired=True) for number in (6, 7)]
    (group,) = FlightRecorderParser(2).read(answer(*done, g0=(7, -1, 6))).groups
    assert (group.enqueued, group.completed) == (7, 7)
    (group,) = (
        FlightRecorderParser(2).read(answer(*done, g0=(8, -1, 6))).groups
    )  # the entry of the eighth is not there yet
    assert (group.enqueued, group.completed) == (8, 7)
    (group,) = FlightRecorderParser(2).read(answer(*done, entry(0, "0", 8, 8), g0=(8, -1, 5))).groups
    assert (group.enqueued, group.completed) == (8, 7)
    (group,) = FlightRecorderParser(2).read(answer(entry(0, "0", 6, 6), done[1], g0=(7, -1, 5))).groups
    assert (group.enqueued, group.completed) == (7, 5)


NCCL_ANSWER = """{"comm_lib_version": "2.28.9", "nccl_comm_state": {}, "version": "2.10",
 "pg_config": {"0": {"desc": "default_pg", "name": "0", "ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"},
               "5": {"desc": "mesh_tp", "name": "5", "ranks": "[0, 1]"}},
 "pg_status": {"0": {"last_completed_collective": "811", "last_enqueued_collective": "812",
                     "last_started_collective": "812"},
               "3": {"last_completed_collective": "96", "last_enqueued_collective": "96",
                     "last_started_collective": "96"}}}"""
"""What torch's handler answers without the entries: the form is that of torch 2.9 to 2.15 (see `make test-cuda`)."""


def test_nccl_counts_collectives_and_says_who_the_members_are() -> None:
    """Groups without a communicator yet have a number of torch's, too: the second here is the fourth that was made."""
    seen = FlightRecorderParser(8, "/nccl", counts_operations=False).read(NCCL_ANSWER.encode())
    assert [
        (one.name, one.size, one.enqueued, one.started, one.completed, one.op) for one in seen.groups
    ] == [
        ("0/nccl", 8, 812, 812, 811, ""),
        ("5/nccl", 2, 96, 96, 96, ""),
    ]
    assert (seen.records, seen.default, seen.nameless, seen.newest_at) == (True, True, False, None)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [('"5"', '"7e0f3c"'), ('"5": {"desc"', '"6": {"name": "6"}, "5": {"desc"')],
    ids=["a name that is no number", "one more"],
)
def test_groups_of_nccl_have_no_name_where_it_is_not_certain_which_is_which(was: str, becomes: str) -> None:
    said = NCCL_ANSWER.replace(was, becomes)
    seen = FlightRecorderParser(8, "/nccl", counts_operations=False).read(said.encode())
    assert (seen.groups, seen.nameless, seen.default, len(seen.counts)) == ([], True, True, 2)


def test_while_nccl_connects_at_the_first_collective_of_a_group_nobody_waits() -> None:
    """As torch's sources have it: a group has a status, and a collective counts, once there is a communicator."""
    config = {name: {"name": name, "desc": "", "ranks": "[0, 1]"} for name in ("0", "7")}
    done = {"last_enqueued_collective": "9", "last_started_collective": "9", "last_completed_collective": "9"}
    for status in ({}, {"0": done}):
        said = {"nccl_comm_state": {}, "pg_config": config, "pg_status": status, "version": "2.10"}
        seen = FlightRecorderParser(2, "/nccl", counts_operations=False).read(json.dumps(said).encode())
        assert (seen.records, seen.nameless) == (True, bool(status))
        groups = tuple(seen.groups)
        assert groups == ()
        assert (
            judge([Worker(rank=rank, idle_s=600.0, collectives=groups) for rank in range(2)], 2, str) is None
        )


def test_the_oldest_torch_says_the_same_of_nccl_with_less_around_it() -> None:
    """2.6: no version of the library, and numbers where later releases write strings."""
    status = {
        "0": {"last_enqueued_collective": 3, "last_started_collective": 3, "last_completed_collective": 2}
    }
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    of_26 = {"nccl_comm_state": {}, "pg_config": config, "pg_status": status, "version": "2.4"}
    (group,) = (
        FlightRecorderParser(2, "/nccl", counts_operations=False).read(json.dumps(of_26).encode()).groups
    )
    assert (group.name, group.size, group.enqueued, group.completed) == ("0/nccl", 2, 3, 2)


def hooked(operation: int, sequence: int, what: str = "all_reduce", **more: Any) -> dict[str, Any]:
    """An entry of the recorder that torch 2.15 attaches to groups of nccl2, of an operation that is not done.

    What is done is left out of its answers. It writes no start, and numbers operations from 0, of whatever kind.
    """
    return entry(0, "0", sequence, operation, f"nccl2:{what}", state="scheduled", **more)


def sent(operation: int, sequence: int) -> dict[str, Any]:
    """The same of what is sent to a single member: `sequence` collectives came before."""
    return hooked(operation, sequence, "send 0->1", is_p2p=True, p2p_seq_id=1)


NCCL2_CONFIG = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}


@pytest.mark.parametrize(
    ("entries", "enqueued", "completed", "seen"),
    [
        ([hooked(0, 1)], 0, -1, (1, 0)),  # the first collective of all
        ([], 0, 0, (1, 1)),
        ([hooked(0, 1), hooked(1, 2)], 1, -1, (2, 0)),
        ([hooked(1, 2)], 1, 0, (2, 1)),
        ([sent(1, 1)], 1, 0, (1, 1)),  # it waits for a receiver, not in a collective
        ([sent(1, 1), sent(2, 1)], 2, 0, (1, 1)),
        ([sent(1, 1), hooked(2, 2)], 2, 0, (2, 1)),
        ([hooked(1, 2), sent(2, 2)], 2, 0, (2, 1)),
        ([], 3, 3, (2, 2)),  # the entries have gone, and had shown one that was none
    ],
    ids=[
        "first",
        "first done",
        "two",
        "second",
        "sends",
        "sends twice",
        "sends first",
        "sends then",
        "later",
    ],
)
def test_nccl2_numbers_operations_from_0_and_tells_which_are_collectives(
    entries: list[dict[str, Any]], enqueued: int, completed: int, seen: tuple[int, int]
) -> None:
    trace = FlightRecorderParser(2, "/nccl2")
    before = sent(2, 1) if enqueued == 3 else hooked(0, 1)
    trace.read(answer(before, config=NCCL2_CONFIG, g0=(int(before["op_id"]), -1, -1)))
    told = trace.read(answer(*entries, config=NCCL2_CONFIG, g0=(enqueued, -1, completed)))
    (group,) = told.groups
    assert (group.name, group.size, group.started) == ("0/nccl2", 2, 0)
    assert (group.enqueued, group.completed) == seen
    assert not told.uncounted


def test_the_first_collective_of_nccl2_is_waited_for() -> None:
    """Numbers from 0: the one that waits there has to differ from one that has asked for nothing."""
    waits = (
        FlightRecorderParser(2, "/nccl2")
        .read(answer(hooked(0, 1), config=NCCL2_CONFIG, g0=(0, -1, -1)))
        .groups
    )
    idle = FlightRecorderParser(2, "/nccl2").read(answer(config=NCCL2_CONFIG)).groups
    workers = [
        Worker(rank=rank, idle_s=60.0, collectives=tuple(groups)) for rank, groups in enumerate((waits, idle))
    ]
    verdict = judge(workers, 2, str)
    assert verdict is not None
    assert verdict.ranks == (1,)


def test_nccl_that_waits_in_the_main_thread_does_not_count() -> None:
    """With TORCH_NCCL_BLOCKING_WAIT torch records operations, but its numbers stay as they were."""
    status = {f"last_{what}_collective": "-1" for what in ("enqueued", "started", "completed")}
    said = {"pg_config": NCCL2_CONFIG, "pg_status": {"0": status}, "version": "2.10"}
    seen = FlightRecorderParser(2, "/nccl", counts_operations=False).read(json.dumps(said).encode())
    assert seen.uncounted


def test_a_recorder_that_is_switched_off_knows_of_no_group() -> None:
    assert (
        not FlightRecorderParser(2)
        .read(b'{"nccl_comm_state":{},"pg_config":{},"pg_status":{},"version":"2.10"}')
        .records
    )
    assert FlightRecorderParser(2).read(answer()).records


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
        FlightRecorderParser(2).read(wrong)
