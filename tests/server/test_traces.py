"""What is kept of workers whose round is over: how much, of how many rounds, for how long."""

from datetime import UTC, datetime

import pytest

from hetrdzv.protocol.rooms.stacks import EARLIER, LEAST_OF_WORKER, MOST_OF_WORKER, About, Stack
from hetrdzv.service.progress import traces as module
from hetrdzv.service.progress.traces import ENTRY, Traces
from hetrdzv.service.quotas import MOST_HELD, Quotas

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def traces() -> Traces:
    return Traces(lambda: AT, Quotas())


def add(
    traces: Traces, number: int, *texts: str, about: About = About.LOGS, group: str = "g", world: int = 8
) -> None:
    told = [Stack(rank=rank, node_id="a", text=text) for rank, text in enumerate(texts)]
    traces.add(group, about, number, told, world)


def test_the_newest_rounds_are_kept_of_each_kind(traces: Traces) -> None:
    add(traces, 1, "in load", about=About.STACKS)
    for number in range(1, EARLIER + 3):
        add(traces, number, f"round {number}")
    assert traces.rounds("g", About.LOGS) == set(range(3, EARLIER + 3))
    assert traces.rounds("g", About.STACKS) == {1}
    newest = traces.of("g", About.LOGS)
    assert newest is not None
    assert (newest.round, newest.at, newest.by_rank[0].text) == (EARLIER + 2, AT, f"round {EARLIER + 2}")
    assert traces.of("g", About.LOGS, 1) is None
    assert traces.of("other", About.LOGS) is None


def test_what_comes_of_several_nodes_is_one_and_equal_texts_count_once(traces: Traces) -> None:
    add(traces, 1, "same", "same", "other")
    traces.add("g", About.LOGS, 1, [Stack(rank=7, text="same"), Stack(rank=0, text="newer")], 8)
    trace = traces.of("g", About.LOGS)
    assert trace is not None
    assert {rank: log.text for rank, log in trace.by_rank.items()} == {
        0: "newer",
        1: "same",
        2: "other",
        7: "same",
    }
    assert trace.by_rank[1].text is trace.by_rank[7].text
    assert trace.size == len("same" + "other" + "newer") + 4 * ENTRY


@pytest.mark.parametrize(("about", "end"), [(About.LOGS, True), (About.STACKS, False)])
@pytest.mark.parametrize(("world", "most"), [(2, MOST_OF_WORKER), (1 << 20, LEAST_OF_WORKER)])
def test_of_large_worlds_less_is_kept_of_each_worker(
    traces: Traces, about: About, end: bool, world: int, most: int
) -> None:
    add(traces, 1, "begins" + "." * 20_000 + "ends", about=about, world=world)
    trace = traces.of("g", about)
    assert trace is not None
    text = trace.by_rank[0].text
    assert (len(text), text.endswith("ends"), text.startswith("begins")) == (most, end, not end)


def test_the_group_with_the_oldest_news_gives_way(traces: Traces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3 * (ENTRY + 10))
    for group in "abc":
        add(traces, 1, "." * 10, group=group)
    add(traces, 2, "", group="a")
    assert [bool(traces.rounds(group, About.LOGS)) for group in "abc"] == [True, False, True]


def test_a_token_has_room_for_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    quotas = Quotas(lambda: ["g*"])
    traces = Traces(lambda: AT, quotas)
    quotas.holds("g", "records", MOST_HELD - 1)
    add(traces, 1, "fits")
    assert traces.rounds("g", About.LOGS) == {1}
    add(traces, 2, "does not")
    assert traces.rounds("g", About.LOGS) == {1}
    traces.forget("g")
    add(traces, 3, "fits again")
    assert traces.rounds("g", About.LOGS) == {3}
    traces.clear()
    assert traces.rounds("g", About.LOGS) == frozenset()
