"""Lines that several ranks write alike."""

import io
import time
from pathlib import Path

import pytest
from tests.agent.rig import Make
from tests.agent.workers.test_torch_starter import assignment, handler, spec
from tests.support.cluster import wait_for
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

from hetagent.launch.command import WorkerCommand
from hetagent.workers import tail
from hetagent.workers.tail import LineTail, format_ranks
from hetagent.workers.torch_starter import TorchStarter


class Tail:
    """A tail of the files of some ranks, the first of which is rank 2 of the world."""

    def __init__(self, folder: Path, ranks: int, *, merges: bool = True) -> None:
        self.out = io.StringIO()
        self.files = {rank: str(folder / str(rank)) for rank in range(ranks)}
        for rank in self.files:
            self.write(rank, "")
        self.tail = LineTail(
            self.files,
            self.out,
            lambda ranks: f"{format_ranks([2 + rank for rank in ranks])}/{format_ranks(ranks)}:",
            merges,
        )

    def write(self, rank: int, text: str) -> None:
        with open(self.files[rank], "a") as file:
            file.write(text)


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (["a\n", "a\n", "a\n"], ["2-4/0-2:a"]),
        (["a\n", "b\n", "a\n"], ["2,4/0,2:a", "3/1:b"]),
        (["A\nB\n", "A\nB\n"], ["2-3/0-1:A", "2-3/0-1:B"]),
        (["a\na\n", "a\n"], ["2-3/0-1:a", "2/0:a"]),
        (["a\nb\n", "b\na\n"], ["2/0:a", "2-3/0-1:b", "3/1:a"]),
        (["x=1\ny", "x=1\n"], ["2-3/0-1:x=1", "2/0:y"]),
    ],
)
def test_equal_lines_of_several_ranks_are_one_line(
    tmp_path: Path, written: list[str], lines: list[str]
) -> None:
    made = Tail(tmp_path, len(written))
    for rank, text in enumerate(written):
        made.write(rank, text)
    made.tail.start()
    made.tail.stop()
    assert made.out.getvalue().splitlines() == lines


def test_without_collapse_lines_are_whole_too(tmp_path: Path) -> None:
    made = Tail(tmp_path, 2, merges=False)
    made.tail.start()
    for rank, text in [(0, "a\nb"), (1, "a\n"), (0, "c\n"), (1, "end")]:
        made.write(rank, text)
        time.sleep(2 * tail.INTERVAL_S)
    made.tail.stop()
    assert made.out.getvalue() == "2/0:a\n3/1:a\n2/0:bc\n3/1:end\n"


def test_a_line_without_an_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the agent's memory would hold all of a progress bar."""
    monkeypatch.setattr(tail, "MAX_CHARACTERS", 4)
    made = Tail(tmp_path, 1)
    made.write(0, "abcdef")
    made.tail.start()
    try:
        wait_for(made.out.getvalue, "the line")
    finally:
        made.tail.stop()
    assert made.out.getvalue() == "2/0:abcdef"


def test_a_line_waits_for_the_others_but_not_for_long(tmp_path: Path) -> None:
    made = Tail(tmp_path, 2)
    made.tail.start()
    made.write(1, "a=")
    made.write(1, "1\n")
    wait_for(made.out.getvalue, "the line")
    made.write(0, "a=1")
    made.tail.stop()
    assert made.out.getvalue() == "3/1:a=1\n2/0:a=1\n"


def test_half_a_character_waits_for_its_other_half(tmp_path: Path) -> None:
    made = Tail(tmp_path, 2)
    made.tail.start()
    for half in ("10%|\u2588".encode()[:-1], "\u2588|\r20%|\n".encode()[2:]):
        for path in made.files.values():
            with open(path, "ab") as file:
                file.write(half)
        time.sleep(3 * tail.INTERVAL_S)
    made.tail.stop()
    assert made.out.getvalue().splitlines() == ["2-3/0-1:10%|\u2588|", "2-3/0-1:20%|"]


def test_many_lines_that_nobody_else_writes_take_little_time(tmp_path: Path) -> None:
    made, began = Tail(tmp_path, 4), time.process_time()
    numbers = range(10_000)
    for rank in made.files:
        made.write(rank, "".join(f"{rank}.{number}\n" for number in numbers))
    made.tail.start()
    made.tail.stop()
    lines = made.out.getvalue().splitlines()
    assert [line for line in lines if "/0:" in line] == [f"2/0:0.{number}" for number in numbers]
    assert len(lines) == 4 * len(numbers)
    assert time.process_time() < began + 2.0


def test_all_that_torch_copies_of_several_ranks_arrives_as_one(
    rig: Make, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "WAIT_S", 600.0)
    command = "seq 1 900; echo rank $RANK; echo 'no such data' >&2"
    made = rig(command, slots=3, tee=Std.ALL, prefix="[a:${rank}] ", collapse=True)
    assert made.run() == 0
    said = capfd.readouterr()
    lines = said.out.splitlines()
    assert lines[:900] == [f"[a:0-2] {number}" for number in range(1, 901)]  # fewer than may wait
    assert sorted(lines[900:]) == [f"[a:{rank}] rank {rank}" for rank in range(3)]
    assert "[a:0-2] no such data" in said.err.splitlines()


def test_what_keeps_a_worker_from_starting_is_what_is_raised(tmp_path: Path) -> None:
    logs = DefaultLogsSpecs(str(tmp_path), tee=Std.ALL)
    command = WorkerCommand(str(tmp_path / "nothing"), (), is_python=False)
    with pytest.raises(FileNotFoundError):
        TorchStarter(spec(handler()), logs, collapse=True).start(
            assignment(), command, [{"HET_ROUND": "5"}] * 2
        )
