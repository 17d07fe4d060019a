"""What is kept of workers whose round is over: how much, of how many rounds, for how long."""

from datetime import UTC, datetime

import pytest

from hetrdzv.protocol.stacks import EARLIER, LEAST_OF_WORKER, MOST_OF_WORKER, About, Stack
from hetrdzv.service.progress import traces as module
from hetrdzv.service.progress.traces import ENTRY, Traces

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def traces() -> Traces:
    return Traces(lambda: AT)


def wrote(traces: Traces, number: int, *texts: str, group: str = "g", world: int = 8) -> None:
    told = [Stack(rank=rank, node_id="a", text=text) for rank, text in enumerate(texts)]
    traces.wrote(group, number, told, world)


def hung(traces: Traces, number: int, *texts: str) -> None:
    traces.hung("g", number, [Stack(rank=rank, node_id="a", text=text) for rank, text in enumerate(texts)])


def test_the_newest_rounds_are_kept_of_each_kind(traces: Traces) -> None:
    hung(traces, 1, "in load")
    for number in range(1, EARLIER + 3):
        wrote(traces, number, f"round {number}")
    assert traces.rounds("g", About.LOGS) == set(range(3, EARLIER + 3))
    assert traces.rounds("g", About.STACKS) == {1}
    newest = traces.of("g", About.LOGS)
    assert newest is not None
    assert (newest.round, newest.at, newest.by_rank[0].text) == (EARLIER + 2, AT, f"round {EARLIER + 2}")
    assert traces.of("g", About.LOGS, 1) is None
    assert traces.of("other", About.LOGS) is None


def test_what_comes_of_several_nodes_is_one_and_what_is_replaced_is_gone(traces: Traces) -> None:
    wrote(traces, 1, "one", "two", "three")
    for number in range(100):
        told = [Stack(rank=7, text="seven"), Stack(rank=0, text=f"newer {number:2}", stderr="x" * number)]
        traces.wrote("g", 1, told, 8)
    trace = traces.of("g", About.LOGS)
    assert trace is not None
    assert {rank: log.text for rank, log in trace.by_rank.items()} == {
        0: "newer 99",
        1: "two",
        2: "three",
        7: "seven",
    }
    assert trace.size == len("newer 99" + "two" + "three" + "seven") + 99 + 4 * ENTRY


def test_stacks_of_a_later_hang_replace_earlier_ones_unless_there_are_none(traces: Traces) -> None:
    hung(traces, 1, "in load", "waits", "waits")
    hung(traces, 1, "in save", "", "waits")
    hung(traces, 1, "", "", "")  # nobody has answered
    trace = traces.of("g", About.STACKS)
    assert trace is not None
    assert {rank: stack.text for rank, stack in trace.by_rank.items()} == {0: "in save", 2: "waits"}
    hung(traces, 2, *["waits"] * 3)
    trace = traces.of("g", About.STACKS)
    assert trace is not None
    assert trace.size == len("waits") + 3 * ENTRY
    assert trace.by_rank[0].text is trace.by_rank[2].text


def test_of_a_worker_without_a_stack_it_is_kept_why_there_is_none(traces: Traces) -> None:
    traces.hung("g", 2, [Stack(rank=1, why="stopped")])
    assert traces.of("g", About.STACKS, 2) is None, "there is nothing to be seen"
    traces.hung("g", 2, [Stack(rank=0, text="waits"), Stack(rank=1, why="stopped")])
    told = traces.of("g", About.STACKS, 2)
    assert told is not None
    assert [told.by_rank[rank].why for rank in (0, 1)] == ["", "stopped"]


@pytest.mark.parametrize(("world", "most"), [(2, MOST_OF_WORKER), (1 << 20, LEAST_OF_WORKER)])
def test_of_large_worlds_less_is_kept_of_each_worker(traces: Traces, world: int, most: int) -> None:
    wrote(traces, 1, "begins" + "." * 20_000 + "ends", world=world)
    trace = traces.of("g", About.LOGS)
    assert trace is not None
    text = trace.by_rank[0].text
    assert (len(text), text.endswith("ends")) == (most, True)


def test_both_streams_have_their_share() -> None:
    log = Stack(rank=0, text="out\n" * 50, stderr="err\n" * 50)
    for size, lines in ((400, (50, 50)), (200, (24, 24)), (99, (12, 12))):
        kept = log.shortened(About.LOGS, size)
        assert (kept.text.count("out\n"), kept.stderr.count("err\n")) == lines
        assert kept.size <= size
    few = Stack(rank=0, text="out\n" * 50, stderr="err\n").shortened(About.LOGS, 100)
    assert (few.text.count("out\n"), few.stderr) == (23, "err\n")
    assert Stack(rank=0, text="begins..").shortened(About.STACKS, 6).text == "begins"


def test_the_group_with_the_oldest_news_gives_way(traces: Traces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3 * (ENTRY + 10))
    for group in "abc":
        wrote(traces, 1, "." * 10, group=group)
    wrote(traces, 2, "", group="a")
    assert [bool(traces.rounds(group, About.LOGS)) for group in "abc"] == [True, False, True]
