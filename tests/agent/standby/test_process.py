"""One standby: it becomes a worker, or ends and says why, and leaves nothing behind."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support import standbys
from tests.support.cluster import wait_for

from hetagent.node.processes import proctree as processes
from hetagent.standby.process import Standby
from hetagent.workers.starter import WorkerProgram

SLOW = """
import os, time
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.01)
"""

SCRIPT = """
import os, sys
print("rank", os.environ["RANK"], "imported" in sys.modules)
"""


@pytest.fixture
def program(tmp_path: Path) -> WorkerProgram:
    """Of a script that prints its rank; it can import the modules `imported`, `slow` and whatever a test writes."""
    (tmp_path / "s.py").write_text(SCRIPT)
    (tmp_path / "imported.py").write_text("")
    (tmp_path / "slow.py").write_text(SLOW)
    return standbys.program(str(tmp_path / "s.py"), GO=str(tmp_path / "go"))


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No process, no zombie and no descriptor."""
    before = standbys.descriptors()
    yield
    assert standbys.descriptors() == before
    assert processes.find_by_incarnation(standbys.MARKS[processes.INCARNATION]) == []
    assert standbys.zombies() == []


def run(standby: Standby, program: WorkerProgram, folder: Path) -> tuple[int, str]:
    """Take it for a round; its exit status and output."""
    with standbys.outputs(folder) as streams:
        status = standbys.ended(standby.become_worker(standbys.in_round(program), *streams))
    return status, (folder / "stdout").read_text()


@pytest.mark.parametrize("when", ["importing", "ready"])
def test_one_that_has_died_is_not_taken(program: WorkerProgram, tmp_path: Path, when: str) -> None:
    standby = standbys.ready(program, []) if when == "ready" else Standby(program, ["slow"])
    os.kill(standby.process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, standby.process.pid, os.WEXITED | os.WNOWAIT)
    with standbys.outputs(tmp_path) as streams, pytest.raises(OSError, match="it had died"):
        standby.become_worker(standbys.in_round(program), *streams)
    assert standby.process.returncode == -signal.SIGKILL


def test_ctrl_c_ends_one_that_was_taken_while_it_imports(program: WorkerProgram, tmp_path: Path) -> None:
    """It is a worker then: to start over would lose the signal, and the script would train on."""
    (tmp_path / "slow.py").write_text(
        "import os, time\nopen(os.environ['GO'], 'w').close()\ntime.sleep(600)\n"
    )
    standby = Standby(program, ["slow"])
    with standbys.outputs(tmp_path) as streams:
        worker = standby.become_worker(standbys.in_round(program), *streams)
        wait_for((tmp_path / "go").exists, "its import")
        os.kill(worker.pid, signal.SIGINT)
        assert standbys.ended(worker) == -signal.SIGINT
    assert (tmp_path / "stdout").read_text() == ""


LEFT_OUT = {
    "copies": ("import os\nos.environ.copy()\nimport no_such_module", "ModuleNotFoundError: No module named"),
    "fails": ("1 / 0", "ZeroDivisionError: division by zero"),
    "exits": ("raise SystemExit(0)", "SystemExit: 0"),
    "reads": (
        "import os\nos.environ.get('RANK')\nos.getenv('HET_ROUND')",
        "it reads HET_ROUND, RANK while it is",
    ),
    "asks": ("import os\n'LOCAL_RANK' in os.environ", "it reads LOCAL_RANK while it is imported"),
    "later": (
        "from os import environ\nfrom reads import os",
        "it reads HET_ROUND, RANK while it is imported",
    ),
}


@pytest.mark.parametrize("module", LEFT_OUT)
def test_a_module_that_no_standby_should_import(program: WorkerProgram, tmp_path: Path, module: str) -> None:
    for name, (source, _) in LEFT_OUT.items():
        (tmp_path / f"{name}.py").write_text(source)
    standby = Standby(program, ["imported", module])
    assert not standbys.receive(standby)
    assert standby.left_out is not None
    name, why = standby.left_out
    assert (name, why.startswith(LEFT_OUT[module][1])) == (module, True), why
    standby.kill()


@pytest.mark.parametrize("module", ["exits", "reads"])
def test_one_that_was_taken_before_such_a_module_begins_anew(
    program: WorkerProgram, tmp_path: Path, module: str
) -> None:
    """It must not end as a worker that succeeded, nor run with what that module left behind."""
    for name, (source, _) in LEFT_OUT.items():
        (tmp_path / f"{name}.py").write_text(source)
    (tmp_path / "s.py").write_text(f"{SCRIPT}print('{module}' in sys.modules)\nraise SystemExit(7)")
    standby = Standby(program, ["slow", module])
    pid = standby.process.pid
    with standbys.outputs(tmp_path) as streams:
        worker = standby.become_worker(standbys.in_round(program), *streams)
    (tmp_path / "go").touch()
    assert standbys.ended(worker) == 7
    assert worker.pid == pid
    assert (tmp_path / "stdout").read_text() == "rank 1 False\nFalse\n"


RELEASED = """
import sys, own
print("script of release 1", own.RELEASE, "imported" in sys.modules)
"""


def released(folder: Path) -> WorkerProgram:
    """Of a script in a folder that a link leads to, with a module beside it and one that is installed."""
    for release in "12":
        (folder / release).mkdir()
        (folder / release / "s.py").write_text(RELEASED.replace("1", release))
        (folder / release / "own.py").write_text(f"RELEASE = {release}")
    (folder / "current").symlink_to("1")
    (folder / "site-packages" / "imported-1.dist-info").mkdir(parents=True)
    (folder / "site-packages" / "imported.py").touch()
    (folder / "site-packages" / "__pycache__").mkdir()
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "local.py").write_text("import own")
    places = (folder / "site-packages", folder / "elsewhere")
    return standbys.program(
        str(folder / "current" / "s.py"), PYTHONPATH=":".join(map(str, places)), GO=str(folder / "go")
    )


def link_to_2(folder: Path) -> None:
    """What `ln -sfn 2 current` does."""
    (folder / "next").symlink_to("2")
    (folder / "next").rename(folder / "current")


def replace_the_folder(folder: Path) -> None:
    (folder / "1").rename(folder / "0")
    (folder / "2").rename(folder / "1")


CHANGES: dict[str, Callable[[Path], object]] = {
    "link": link_to_2,
    "folder": replace_the_folder,
    "script": lambda folder: (folder / "1" / "s.py").write_text(RELEASED.replace("of release", "at release")),
    "installed": lambda folder: (folder / "site-packages" / "other-1.dist-info").mkdir(),
    "module": lambda folder: (folder / "elsewhere" / "local.py").write_text("import own, own"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_one_that_would_not_import_the_same_now_begins_anew(tmp_path: Path, change: str) -> None:
    """Otherwise the script of a new release would run with the modules of the old one."""
    program = released(tmp_path)
    standby = standbys.ready(program, ["imported", "local"])
    time.sleep(0.02)  # longer than a tick of the file system's clock
    CHANGES[change](tmp_path)
    with standbys.outputs(tmp_path) as streams:
        worker = standby.become_worker(standbys.in_round(program), *streams)
    assert standbys.ended(worker) == 0
    is_new = "2" if change in ("link", "folder") else "1"
    how = "at" if change == "script" else "of"
    assert (tmp_path / "stdout").read_text() == f"script {how} release {is_new} {is_new} False\n"
    assert "has changed since a standby imported ahead" in (tmp_path / "stderr").read_text()


def test_what_scripts_write_beside_themselves_is_no_change(tmp_path: Path) -> None:
    program = released(tmp_path)
    standby = standbys.ready(program, ["imported", "local"])
    for place in (tmp_path / "1", tmp_path / "elsewhere"):
        (place / "checkpoint.pt").touch()
        (place / "__pycache__").mkdir(exist_ok=True)
    assert run(standby, program, tmp_path) == (0, "script of release 1 1 True\n")
    assert (tmp_path / "stderr").read_text() == ""


def test_a_module_that_starts_cuda(program: WorkerProgram, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("class cuda:\n    is_initialized = lambda: True")
    standby = Standby(program, ["imported", "torch"])
    assert not standbys.receive(standby)
    assert standby.left_out == ("torch", "it takes a GPU while it is imported")
    standby.kill()


def test_what_its_imports_have_started_ends_with_it(program: WorkerProgram, tmp_path: Path) -> None:
    (tmp_path / "starts.py").write_text("import os, subprocess\nsubprocess.Popen(['sleep', '300'])")
    standby = standbys.ready(program, ["starts"])
    sleepers = processes.find_session_members([standby.process.pid])
    assert len(sleepers) == 2
    standby.kill()
    wait_for(lambda: not processes.list_processes().keys() & set(sleepers), "the end of both")
