"""`--preload`: the flag, the variable, and where there can be no standbys."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hetagent.cli.parse import parse_command_line
from hetagent.errors import UsageError
from hetagent.launch.command import WorkerCommand
from hetagent.options.model import Options
from hetagent.standby.keeper import make_standbys

SCRIPT = WorkerCommand("python", ("-u", "runner.py", "train.py"), is_python=True)
PROGRAM = WorkerCommand("/opt/bin/train", (), is_python=False)


def asked(given: str | None, variable: str | None = None) -> Options:
    flags = [] if given is None else ["--preload", given]
    environ = {} if variable is None else {"HET_PRELOAD": variable}
    return parse_command_line(["--server", "h", "--node-id", "a", *flags], environ)


@pytest.mark.parametrize(
    ("given", "variable", "expected"),
    [
        (None, None, ("auto",)),
        (None, "none", ()),
        ("none", "torch", ()),
        ("torch", "none", ("torch",)),
        (" torch , my_package.models,auto", None, ("torch", "my_package.models", "auto")),
        (None, "numpy", ("numpy",)),
        ("torch,", None, "--preload: '' is no module"),
        ("a-b", None, "--preload: 'a-b' is no module"),
        (None, "none,torch.1", "HET_PRELOAD=none,torch.1: 'torch.1' is no module: give names"),
    ],
)
def test_what_they_import(given: str | None, variable: str | None, expected: tuple[str, ...] | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=f"^{expected}"):
            asked(given, variable)
    else:
        assert asked(given, variable).preload == expected


@pytest.mark.parametrize("command", [SCRIPT, None])  # or the group's
def test_there_are_standbys_for_python_scripts(command: WorkerCommand | None) -> None:
    told: list[str] = []
    room = make_standbys(node("gpu", command, told, "decimal"))
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
    assert make_standbys(node(launch, command, told)) is None
    (said,) = told
    assert said.startswith(f"no standby processes, so restarts import everything again: {problem}")
    assert make_standbys(node(launch, command, told, None, "none")) is None
    assert make_standbys(node(launch, command, told, "none")) is None
    assert told == [said]


def node(
    launch: str,
    command: WorkerCommand | None,
    told: list[str],
    given: str | None = None,
    variable: str | None = None,
) -> Any:
    options = replace(asked(given, variable), launch=launch)
    return SimpleNamespace(options=options, command=command, tell=told.append)
