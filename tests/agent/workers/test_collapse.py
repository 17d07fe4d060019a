"""Lines that several ranks write alike."""

import io
import threading

import pytest
from tests.agent.rig import Make
from torch.distributed.elastic.multiprocessing import Std

from hetagent.workers import collapse
from hetagent.workers.collapse import LineMerger


class Out(io.StringIO):
    """Says when something has arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = threading.Event()

    def flush(self) -> None:
        if self.getvalue():
            self.arrived.set()


def merged(out: Out, *writes: tuple[int, str], ranks: int) -> LineMerger:
    made = LineMerger(out, range(ranks), 2, lambda ranks, local_ranks: f"{ranks}/{local_ranks}:")
    for rank, text in writes:
        made.write(f"{LineMerger.line_prefix(rank)}{text}")
    return made


@pytest.mark.parametrize(
    ("ranks", "writes", "lines"),
    [
        (3, [(0, "a\n"), (1, "a\n"), (2, "a\n")], ["2-4/0-2:a"]),
        (3, [(2, "a\n"), (0, "a\n"), (1, "b\n")], ["2,4/0,2:a", "3/1:b"]),
        (2, [(0, "A\n"), (0, "B\n"), (1, "A\n"), (1, "B\n")], ["2-3/0-1:A", "2-3/0-1:B"]),
        (2, [(0, "a\n"), (0, "a\n"), (1, "a\n")], ["2-3/0-1:a", "2/0:a"]),
        (2, [(0, "a\n"), (0, "b\n"), (1, "b\n"), (1, "a\n")], ["2/0:a", "2-3/0-1:b", "3/1:a"]),
        (2, [(0, "x="), (1, "x=1\n"), (0, "1\n"), (0, "y")], ["2-3/0-1:x=1", "2/0:y"]),
    ],
)
def test_equal_lines_of_several_ranks_are_one_line(
    monkeypatch: pytest.MonkeyPatch, ranks: int, writes: list[tuple[int, str]], lines: list[str]
) -> None:
    monkeypatch.setattr(collapse, "WAIT_S", 600.0)
    out = Out()
    merged(out, *writes, ranks=ranks).close()
    assert out.getvalue().splitlines() == lines


def test_a_line_waits_for_the_others_but_not_for_long() -> None:
    out = Out()
    made = merged(out, (1, "a\n"), ranks=2)
    assert out.arrived.wait(30.0)
    made.write(f"{LineMerger.line_prefix(0)}a")
    made.close()
    assert out.getvalue() == "3/1:a\n2/0:a\n"


def test_all_that_torch_copies_of_several_ranks_arrives_as_one(
    rig: Make, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collapse, "WAIT_S", 600.0)
    command = "seq 1 900; echo rank $RANK; echo 'no such data' >&2"
    made = rig(command, slots=3, tee=Std.ALL, prefix="[a:${rank}] ", collapse=True)
    assert made.run() == 0
    said = capfd.readouterr()
    lines = said.out.splitlines()
    assert lines[:900] == [f"[a:0-2] {number}" for number in range(1, 901)]  # fewer than may wait
    assert sorted(lines[900:]) == [f"[a:{rank}] rank {rank}" for rank in range(3)]
    assert "[a:0-2] no such data" in said.err.splitlines()
