"""What torch's flight recorder answers, and what is read from it."""

import json
import re
from typing import Any

import pytest

from hetagent.monitor.flight_recorder import FlightRecorderDump, FlightRecorderParser


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
    one, other = FlightRecorderParser(2).parse(of_one), FlightRecorderParser(2).parse(of_other)
    assert [(group.name, group.size, group.enqueued, group.completed, group.op) for group in one.groups] == [
        ("0", 2, 7, 7, "all_reduce [[10]]"),
        ("4", 0, 2, 2, "barrier [[10]]"),
    ]
    assert [(group.name, group.enqueued, group.completed) for group in other.groups] == [
        ("0", 7, 7),
        ("4", 1, 0),
    ]


def test_a_name_is_remembered_once_its_entries_have_gone_and_a_group_without_one_is_only_counted() -> None:
    trace = FlightRecorderParser(2)
    trace.parse(answer(entry(1, "5", 3, 3), g1=(3, -1, 3)))
    seen = trace.parse(answer(entry(0, "0", 9, 9), g0=(9, -1, 9), g1=(4, -1, 3), g7=(3, -1, 3)))
    assert {group.name: group.enqueued for group in seen.groups} == {"0": 9, "5": 4}
    assert seen.counts == {"0": (9, -1, 9), "1": (4, -1, 3), "7": (3, -1, 3)}


DONE = [entry(0, "0", number, number, retired=True) for number in (6, 7)]


@pytest.mark.parametrize(
    ("entries", "enqueued", "completed", "seen"),
    [
        ([entry(0, "0", 11, 12)], 12, 11, (11, 10)),  # what was sent to single members is no collective
        (DONE, 7, 6, (7, 7)),  # the sixth was done after the seventh
        (DONE, 8, 6, (8, 7)),  # the entry of the eighth is not there yet
        ([*DONE, entry(0, "0", 8, 8)], 8, 5, (8, 7)),  # it is, and is not done
        ([entry(0, "0", 6, 6), DONE[1]], 7, 5, (7, 5)),  # nor is the sixth
    ],
)
def test_an_operation_is_done_once_its_entry_says_so(
    entries: list[dict[str, Any]], enqueued: int, completed: int, seen: tuple[int, int]
) -> None:
    (group,) = FlightRecorderParser(2).parse(answer(*entries, g0=(enqueued, -1, completed))).groups
    assert (group.enqueued, group.completed) == seen


NCCL_ANSWER = """{"comm_lib_version": "2.28.9", "nccl_comm_state": {}, "version": "2.10",
 "pg_config": {"0": {"desc": "default_pg", "name": "0", "ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"},
               "5": {"desc": "mesh_tp", "name": "5", "ranks": "[0, 1]"}},
 "pg_status": {"0": {"last_completed_collective": "811", "last_enqueued_collective": "812",
                     "last_started_collective": "812"},
               "3": {"last_completed_collective": "96", "last_enqueued_collective": "96",
                     "last_started_collective": "96"}}}"""
"""What torch's handler answers without the entries: the form is that of torch 2.9 to 2.15 (see `make test-cuda`)."""


def of_nccl(text: str) -> FlightRecorderDump:
    return FlightRecorderParser(8, "/nccl", counts_operations=False).parse(text.encode())


@pytest.mark.parametrize("strings", [True, False], ids=["2.9", "2.6 writes numbers"])
def test_nccl_counts_collectives_and_says_who_the_members_are(strings: bool) -> None:
    """Groups without a communicator yet have a number of torch's, too: the second here is the fourth that was made."""
    seen = of_nccl(
        NCCL_ANSWER if strings else re.sub(r'collective": "(\d+)"', r'collective": \1', NCCL_ANSWER)
    )
    assert [
        (one.name, one.size, one.enqueued, one.started, one.completed, one.op) for one in seen.groups
    ] == [("0/nccl", 8, 812, 812, 811, ""), ("5/nccl", 2, 96, 96, 96, "")]
    assert (seen.has_groups, seen.has_default_group, seen.unknown_reason) == (True, True, "")


@pytest.mark.parametrize(
    ("was", "becomes", "blind"),
    [
        ('"5"', '"7e0f3c"', "has groups that torch does not name"),
        ('"5": {"desc"', '"6": {"name": "6"}, "5": {"desc"', "has groups that torch does not name"),
        ("812", "-1", "does not count: is TORCH_NCCL_BLOCKING_WAIT set?"),
    ],
    ids=["a name that is no number", "one more", "waits in the main thread"],
)
def test_of_nccl_nothing_is_known_where_its_numbers_mean_nothing(was: str, becomes: str, blind: str) -> None:
    seen = of_nccl(NCCL_ANSWER.replace(was, becomes))
    assert (seen.groups, seen.unknown_reason, seen.has_default_group, len(seen.counts)) == (
        [],
        blind,
        True,
        2,
    )


@pytest.mark.parametrize("name", ["5", "7e0f3c"])
def test_while_nccl_connects_at_the_first_collective_of_a_group_nobody_waits(name: str) -> None:
    """As torch's sources have it: a group has a status, and a collective counts, once there is a communicator."""
    answers = NCCL_ANSWER.replace('"5"', f'"{name}"')
    seen = of_nccl(re.sub(r'"pg_status".*', '"pg_status": {}}', answers, flags=re.DOTALL))
    assert (seen.has_groups, seen.has_default_group, seen.unknown_reason, seen.groups) == (True, True, "", [])


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
)
def test_nccl2_numbers_operations_from_0_and_tells_which_are_collectives(
    entries: list[dict[str, Any]], enqueued: int, completed: int, seen: tuple[int, int]
) -> None:
    trace = FlightRecorderParser(2, "/nccl2")
    before = sent(2, 1) if enqueued == 3 else hooked(0, 1)
    trace.parse(answer(before, config=NCCL2_CONFIG, g0=(int(before["op_id"]), -1, -1)))
    told = trace.parse(answer(*entries, config=NCCL2_CONFIG, g0=(enqueued, -1, completed)))
    (group,) = told.groups
    assert (group.name, group.size, group.started) == ("0/nccl2", 2, 0)
    assert (group.enqueued, group.completed) == seen
