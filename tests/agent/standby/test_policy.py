"""When there are standbys: flags, launches, programs, memory."""

from pathlib import Path

import psutil
import pytest

from hetagent.launch.command import WorkerCommand
from hetagent.options.model import UsageError
from hetagent.standby import policy

SCRIPT = WorkerCommand("python", ("-u", "runner.py", "train.py"), is_python=True)
PROGRAM = WorkerCommand("/opt/bin/train", (), is_python=False)


@pytest.mark.parametrize(
    ("preload", "default", "expected"),
    [
        (None, None, ("auto",)),
        (None, "none", ()),
        ("none", "torch", ()),
        ("torch", "none", ("torch",)),
        (" torch , my_package.models,auto", None, ("torch", "my_package.models", "auto")),
        (None, "numpy", ("numpy",)),
    ],
)
def test_the_flag_comes_before_the_variable(
    preload: str | None, default: str | None, expected: tuple[str, ...]
) -> None:
    assert policy.modules(preload, default, "gpu", SCRIPT) == (expected, None)
    assert policy.modules(preload, default, "gpu", None) == (expected, None)  # the group's command


@pytest.mark.parametrize(("preload", "default"), [("torch,", None), ("a-b", None), (None, "none,torch.1")])
def test_names_that_are_no_modules(preload: str | None, default: str | None) -> None:
    with pytest.raises(
        UsageError, match=f"^{'--preload' if preload else 'HET_PRELOAD'} takes names of modules"
    ):
        policy.modules(preload, default, "gpu", SCRIPT)


@pytest.mark.parametrize(
    ("launch", "command", "problem"),
    [
        ("node", SCRIPT, "--launch node starts"),
        ("mpi", None, "--launch mpi starts"),
        ("gpu", PROGRAM, "train is not a Python script"),
    ],
)
def test_where_there_can_be_none_a_line_says_why(
    launch: str, command: WorkerCommand | None, problem: str
) -> None:
    modules, line = policy.modules(None, None, launch, command)
    assert modules == ()
    assert line is not None
    assert line.startswith(f"no standby processes, so restarts import everything again: {problem}")
    assert policy.modules(None, "none", launch, command) == ((), None)
    assert policy.modules("none", None, launch, command) == ((), None)
    with pytest.raises(UsageError, match=f"^--preload torch makes no sense here, since {problem}"):
        policy.modules("torch", None, launch, command)


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process's control group, in a folder that stands for the kernel's; its parent is the root."""
    (tmp_path / "own").write_text("1:cpu:/elsewhere\n0::/job\n")
    monkeypatch.setattr(policy, "OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(policy, "CGROUP", tmp_path)
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


def limit(folder: Path, limit: str, used: int = 0, inactive_file: int = 0) -> None:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive_file}\n")


def test_without_limits_the_machines_memory_counts(cgroup: Path) -> None:
    assert 0 < policy.free_memory() <= psutil.virtual_memory().total
    limit(cgroup, "max")
    assert 0 < policy.free_memory() <= psutil.virtual_memory().total


def test_the_smallest_limit_counts_without_what_is_cached(cgroup: Path, tmp_path: Path) -> None:
    limit(cgroup, "1000", used=900, inactive_file=500)
    assert policy.free_memory() == 600
    limit(tmp_path, "700", used=650)
    assert policy.free_memory() == 50
    (tmp_path / "memory.current").unlink()  # unreadable: only what can be read counts
    assert policy.free_memory() == 600


def test_without_control_groups_of_version_2_the_machines_memory_counts(cgroup: Path) -> None:
    limit(cgroup, "1000", used=900)
    policy.OWN_CGROUP.write_text("1:memory:/job\n")
    assert policy.free_memory() > 1000
    policy.OWN_CGROUP.unlink()
    assert policy.free_memory() > 1000


def test_a_shortage_names_both_figures(cgroup: Path) -> None:
    limit(cgroup, str(3 * policy.NEEDED_BYTES), used=policy.NEEDED_BYTES)
    assert policy.memory_shortage(2) is None
    assert policy.memory_shortage(3) == "2.0 GiB of memory are free, 3 GiB are needed"
