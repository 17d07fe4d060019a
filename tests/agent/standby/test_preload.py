"""`--preload`: the flag, the variable, and where there can be no standbys."""

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from hetagent.errors import UsageError
from hetagent.launch.command import WorkerCommand
from hetagent.options import parts
from hetagent.options.parts import Preload
from hetagent.standby.keeper import standbys_of

SCRIPT = WorkerCommand("python", ("-u", "runner.py", "train.py"), is_python=True)
PROGRAM = WorkerCommand("/opt/bin/train", (), is_python=False)


def preload(given: str | None, variable: str | None = None) -> Preload:
    environ = {} if variable is None else {"HET_PRELOAD": variable}
    return parts.preload(Namespace(preload=given), environ)


@pytest.mark.parametrize(
    ("given", "variable", "expected"),
    [
        (None, None, ["auto"]),
        (None, "none", []),
        ("none", "torch", []),
        ("torch", "none", ["torch"]),
        (" torch , my_package.models,auto", None, ["torch", "my_package.models", "auto"]),
        (None, "numpy", ["numpy"]),
    ],
)
def test_the_flag_comes_before_the_variable(
    given: str | None, variable: str | None, expected: list[str]
) -> None:
    assert preload(given, variable).modules == expected


@pytest.mark.parametrize(("given", "variable"), [("torch,", None), ("a-b", None), (None, "none,torch.1")])
def test_names_that_are_no_modules(given: str | None, variable: str | None) -> None:
    with pytest.raises(
        UsageError, match=f"^{'--preload' if given else 'HET_PRELOAD'} takes names of modules"
    ):
        preload(given, variable)


@pytest.mark.parametrize("command", [SCRIPT, None])  # or the group's
def test_there_are_standbys_for_python_scripts(command: WorkerCommand | None) -> None:
    told: list[str] = []
    room = standbys_of(node("gpu", command, told), preload("decimal"))
    assert room is not None
    room.close()
    assert told == []


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
    told: list[str] = []
    here = node(launch, command, told)
    assert standbys_of(here, preload(None)) is None
    (said,) = told
    assert said.startswith(f"no standby processes, so restarts import everything again: {problem}")
    assert standbys_of(here, preload(None, "none")) is None
    assert standbys_of(here, preload("none")) is None
    with pytest.raises(UsageError, match=f"^--preload torch makes no sense here, since {problem}"):
        standbys_of(here, preload("torch"))
    assert told == [said]


def node(launch: str, command: WorkerCommand | None, told: list[str]) -> Any:
    return SimpleNamespace(options=SimpleNamespace(launch=launch), command=command, tell=told.append)
