"""What is kept of workers whose round is over: how much, of how many rounds, for how long."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from hetrdzv.cli.hetctl.logs import new_text
from hetrdzv.core.model import Group
from hetrdzv.protocol.worker_output import (
    MAX_EARLIER_ROUNDS,
    MAX_WORKER_CHARACTERS,
    MIN_WORKER_CHARACTERS,
    OutputKind,
    WorkerOutput,
    group_equal_stacks,
)
from hetrdzv.service.progress import post_mortems as module
from hetrdzv.service.progress.post_mortems import WORKER_OVERHEAD_CHARACTERS, PostMortems
from tests.core.driver import Story


@pytest.fixture
def kept() -> PostMortems:
    return PostMortems(lambda: datetime(2026, 1, 1, tzinfo=UTC))


def running(slots: int = 8, number: int = 1, group_id: str = "g") -> Group:
    """A group whose newest round has one node, `a`."""
    story = Story(max_nodes=1)
    story.join("a", slots)
    assert story.group.round is not None
    return replace(story.group, group_id=group_id, round=replace(story.group.round, number=number))


def add(kept: PostMortems, group: Group, *texts: str, number: int | None = None, node: str = "a") -> None:
    assert group.round is not None
    logs = [WorkerOutput(rank=rank, text=text) for rank, text in enumerate(texts)]
    kept.add_logs(group, node, number or group.round.number, logs)


def test_the_newest_rounds_are_kept_of_each_kind(kept: PostMortems) -> None:
    kept.add_stacks("g", 1, 1, [WorkerOutput(rank=0, text="in load")])
    for number in range(1, MAX_EARLIER_ROUNDS + 3):
        add(kept, running(number=number), f"round {number}")
    assert kept.list_rounds("g", OutputKind.LOGS) == set(range(3, MAX_EARLIER_ROUNDS + 3))
    assert kept.list_rounds("g", OutputKind.STACKS) == {1}
    newest = kept.find("g", OutputKind.LOGS)
    assert newest is not None
    assert (newest.round, newest.by_rank[0].text) == (
        MAX_EARLIER_ROUNDS + 2,
        f"round {MAX_EARLIER_ROUNDS + 2}",
    )
    assert kept.find("g", OutputKind.LOGS, 1) is None
    assert kept.find("other", OutputKind.LOGS) is None


def test_what_is_replaced_is_gone_and_of_an_earlier_round_others_words_stay(kept: PostMortems) -> None:
    group = running()
    add(kept, group, "one", "two", "three")
    for number in range(10):
        kept.add_logs(group, "a", 1, [WorkerOutput(rank=0, text=f"newer {number}", stderr="x" * number)])
    kept.add_logs(group, "b", 1, [WorkerOutput(rank=0, text="not a member")])
    add(kept, running(number=2), "late", "late", "late", "late", number=1, node="b")
    logs = kept.find("g", OutputKind.LOGS, 1)
    assert logs is not None
    assert [logs.by_rank[rank].text for rank in range(4)] == ["newer 9", "two", "three", "late"]
    assert kept.list_rounds("g", OutputKind.LOGS) == {1}
    assert logs.size == len("newer 9" + "two" + "three" + "late") + 9 + 4 * WORKER_OVERHEAD_CHARACTERS


def test_of_an_earlier_round_all_ranks_are_kept_that_it_had(kept: PostMortems) -> None:
    story = Story(max_nodes=2)
    story.join("a", 1)
    story.join("b", 2)
    story.leave("b")
    story.join("a")
    story.wait(60)
    assert (story.round.number, story.round.world_size) == (2, 1)
    kept.add_logs(story.group, "b", 1, [WorkerOutput(rank=rank, text="late") for rank in (1, 2)])
    logs = kept.find("g", OutputKind.LOGS, 1)
    assert logs is not None
    assert (logs.world_size, sorted(logs.by_rank)) == (3, [1, 2])


def test_stacks_of_a_later_hang_replace_earlier_ones_unless_there_are_none(kept: PostMortems) -> None:
    def hung(*texts: str) -> None:
        kept.add_stacks("g", 1, 3, [WorkerOutput(rank=rank, text=text) for rank, text in enumerate(texts)])

    hung("in load", "waits", "waits")
    hung("in save", "", "waits")
    hung("", "", "")  # nobody has answered
    stacks = kept.find("g", OutputKind.STACKS)
    assert stacks is not None
    assert {rank: stack.text for rank, stack in stacks.by_rank.items()} == {0: "in save", 2: "waits"}


def test_of_large_worlds_less_is_kept_of_each_worker_and_both_streams_have_their_share(
    kept: PostMortems,
) -> None:
    for world, most in ((2, MAX_WORKER_CHARACTERS), (1 << 16, MIN_WORKER_CHARACTERS)):
        add(kept, running(world), "begins" + "." * 20_000 + "ends")
        logs = kept.find("g", OutputKind.LOGS)
        assert logs is not None
        text = logs.by_rank[0].text
        assert (len(text), text.endswith("ends")) == (most, True)
        kept.forget_all()
    log = WorkerOutput(rank=0, text="out\n" * 50, stderr="err\n" * 50)
    for size, lines in ((400, (50, 50)), (200, (24, 24)), (99, (12, 12))):
        end = log.truncate(OutputKind.LOGS, size)
        assert (end.text.count("out\n"), end.stderr.count("err\n")) == lines
        assert end.size <= size
    assert WorkerOutput(rank=0, text="begins..").truncate(OutputKind.STACKS, 6).text == "begins"


def test_the_group_with_the_oldest_news_gives_way(kept: PostMortems, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOTAL_CHARACTERS", 3 * (WORKER_OVERHEAD_CHARACTERS + 10))
    for group in "abc":
        add(kept, running(group_id=group), "." * 10)
    add(kept, running(group_id="a", number=2), "")
    assert [bool(kept.list_rounds(group, OutputKind.LOGS)) for group in "abc"] == [True, False, True]


# -- what hetctl shows of them -------------------------------------------------------------------------------


def stack(rank: int, text: str = "", why: str = "") -> WorkerOutput:
    return WorkerOutput(rank=rank, node_id=f"gpu{rank // 2}", text=text, why=why)


def test_equal_stacks_are_put_together_and_the_odd_one_comes_first() -> None:
    waits = "Thread 0x{:x} (most recent call first):\n  all_reduce"
    stacks = [stack(rank, waits.format(rank + 100)) for rank in range(6)]
    stacks[3] = stack(3, "Thread 0x1 (most recent call first):\n  load")
    stacks[5] = stack(5, why="it does not answer")
    shown = group_equal_stacks(stacks)
    assert [[stack.rank for stack in equal] for equal in shown] == [[3], [0, 1, 2, 4], [5]]
    assert shown[2][0].why == "it does not answer"


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ("", "a/b", "a/b"),
        ("a/b/", "a/b/", ""),
        ("a/b", "a/b", ""),
        ("a/b", "a/b/c", "c"),
        ("a/b/c/", "b/c/d/", "b/c/d/"),  # too little is left of what was known
        ("x/a/b/c/", "x/a/b/c/d/e", "d/e"),
        ("a/b/10%", "a/b/20%", "20%"),  # a progress bar
        ("a/b/hal", "a/b/half/c", "half/c"),
        ("a/b/", "x/y/", "x/y/"),
        ("a/a/", "a/a/a/a/", "a/a/"),  # the same line again
        ("10%", "20%", "20%"),
    ],
)
def test_only_lines_that_are_new_are_shown(before: str, now: str, new: str) -> None:
    assert new_text(before.replace("/", "\n"), now.replace("/", "\n")) == new.replace("/", "\n")
