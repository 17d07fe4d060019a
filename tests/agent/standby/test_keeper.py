"""There is a standby for each local rank, in time, and what goes wrong costs no restart."""

import resource
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import standbys
from tests.support.cluster import wait_for

from hetagent.node.processes import proctree as processes
from hetagent.standby import keeper
from hetagent.standby.keeper import StandbyPool
from hetagent.workers.starter import WorkerProgram

INCARNATION = standbys.MARKS[processes.INCARNATION]


class Kept:
    """Standbys, and what they said to the person at the terminal."""

    def __init__(self, folder: Path, preload: Sequence[str]) -> None:
        self.told: list[str] = []
        self.standbys = StandbyPool(preload, self.told.append)
        self.folder = folder

    def ready(self, *ranks: int) -> Mapping[int, int]:
        """Wait until those of these ranks are ready; the pids by rank."""

        def pids() -> Mapping[int, int] | None:
            self.standbys.on_wakeup()
            return found if (found := standbys.ready_pids(self.standbys)).keys() == set(ranks) else None

        return wait_for(pids, f"standbys of {ranks}")

    def says(self) -> list[str]:
        """Wait until something was said."""
        return wait_for(lambda: self.standbys.on_wakeup() or self.told, "a line")

    def take(self, rank: int, program: WorkerProgram) -> "subprocess.Popen[bytes] | None":
        with standbys.outputs(self.folder) as streams:
            return self.standbys.claim_standby(rank, standbys.in_round(program), *streams)


def living() -> list[int]:
    """The pids of all standbys."""
    return processes.find_by_incarnation(INCARNATION)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rests, and no shortage of memory."""
    for name in ("QUIET_S", "RETRY_S", "LOOK_S"):
        monkeypatch.setattr(keeper, name, 0.0)
    monkeypatch.setattr(keeper, "NEEDED_BYTES", 1)


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Callable[..., Kept]]:
    """Makes `Kept`; in the end it is closed, and nothing may be left."""
    made: list[Kept] = []
    before = standbys.descriptors()

    def make(*preload: str) -> Kept:
        made.append(Kept(tmp_path, preload))
        return made[-1]

    yield make
    for one in made:
        one.standbys.close()
        one.standbys.close()
    assert living() == []
    assert standbys.descriptors() == before
    assert standbys.zombies() == []


@pytest.fixture
def program(tmp_path: Path) -> WorkerProgram:
    """Of an empty script beside the module `imported`."""
    for name in ("s", "imported"):
        (tmp_path / f"{name}.py").touch()
    return standbys.program(str(tmp_path / "s.py"))


def test_three_that_die_while_they_import_are_the_last(
    keep: Callable[..., Kept], program: WorkerProgram, tmp_path: Path
) -> None:
    (tmp_path / "dies.py").write_text("import os\nos._exit(7)")
    kept = keep("dies")
    kept.standbys.start_predicted([program])
    [line] = kept.says()
    assert "3 in a row failed; the last one ended with status 7 as it imported; --preload" in line
    assert kept.take(0, program) is None
    assert standbys.ready_pids(kept.standbys) == {}


def test_an_agent_without_descriptors_goes_on_without_standbys(
    keep: Callable[..., Kept], program: WorkerProgram
) -> None:
    kept = keep("imported")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        kept.standbys.start_predicted([program])
        kept.standbys.on_wakeup()
        kept.standbys.on_wakeup()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    [line] = kept.told
    assert "3 in a row failed; the last one cannot be started" in line


def test_a_module_is_left_out_once_for_all_ranks(
    keep: Callable[..., Kept], program: WorkerProgram, tmp_path: Path
) -> None:
    (tmp_path / "reads.py").write_text("import os; os.environ.get('RANK')")
    (tmp_path / "s.py").write_text("import sys; sys.exit(5 + ('reads' in sys.modules))")
    kept = keep("reads", "imported")
    kept.standbys.start_predicted([program, program])
    kept.ready(0, 1)
    assert kept.told == ["standbys do without reads: it reads RANK while it is imported"]
    worker = kept.take(1, program)
    assert worker is not None
    assert standbys.ended(worker) == 5


@pytest.mark.parametrize("changes", ["args", "environ"])
def test_another_plan_starts_without_a_standby_and_gets_one_for_the_next_round(
    keep: Callable[..., Kept], program: WorkerProgram, changes: str
) -> None:
    kept = keep("imported")
    kept.standbys.start_predicted([program])
    before = kept.ready(0)[0]
    args, environ = (*program.args, "--resume"), {**program.environ, "OMP_NUM_THREADS": "2"}
    other = replace(program, args=args) if changes == "args" else replace(program, environ=environ)
    assert kept.take(0, other) is None
    assert before not in processes.list_processes()
    after = kept.ready(0)[0]
    worker = kept.take(0, other)
    assert worker is not None
    assert worker.pid == after
    assert standbys.ended(worker) == 0
    assert kept.told == []


def test_memory_that_is_short_is_said_once_and_waited_for(
    keep: Callable[..., Kept], program: WorkerProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "NEEDED_BYTES", 1 << 60)
    kept = keep("imported")
    kept.standbys.start_predicted([program])
    kept.says()
    assert kept.take(0, program) is None
    assert len(kept.told) == 1
    assert kept.told[0].startswith("no standbys for now, so a restart imports everything again: ")
    monkeypatch.setattr(keeper, "NEEDED_BYTES", 1)
    kept.ready(0)
    assert len(kept.told) == 1
