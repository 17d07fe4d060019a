"""A start that fails takes the standbys with it that it has taken."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.agent.rig import Make

from hetagent.launch.base import Assignment, Launch
from hetagent.launch.command import RUNNER, WorkerCommand
from hetagent.node.processes import proctree as processes
from hetagent.node.processes.proctree import find_by_incarnation
from hetagent.standby.keeper import StandbyPool


class SecondCannotStart(Launch):
    """The kernel refuses the second worker of the first round: its environment is too large."""

    def worker_env(self, assignment: Assignment, local_rank: int) -> Mapping[str, str | None]:
        return {"LARGE": "x" * (1 << 18)} if (assignment.round, local_rank) == (1, 1) else {}

    def predict_command(self, local_rank: int) -> tuple[WorkerCommand, Mapping[str, str | None]] | None:
        assert self._command is not None
        return self._command, {}


SLOW = """
import os, time
while not os.path.exists("{folder}/go"):
    time.sleep(0.01)
"""

SAYS = """
import os
with open("{folder}/ran", "a") as file:
    print(os.getpid(), os.environ["LOCAL_RANK"], os.environ["HET_ROUND"], file=file)
"""


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_start_that_fails_kills_the_standbys_that_it_has_taken_and_no_others(
    rig: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: int
) -> None:
    """It still imports, so it does not even know yet that it was taken."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "slow.py").write_text(SLOW.format(folder=tmp_path))
    (tmp_path / "s.py").write_text(SAYS.format(folder=tmp_path))
    command = WorkerCommand(sys.executable, ("-u", str(RUNNER), str(tmp_path / "s.py")), is_python=True)
    made_standbys: list[StandbyPool] = []
    kept: list[int] = []

    def standbys(tell: Callable[[str], None]) -> StandbyPool:
        made_standbys.append(StandbyPool(["slow"], tell))
        return made_standbys[0]

    made = rig(
        None, slots=3, launch=SecondCannotStart(command), parts={"standbys": standbys}, max_restarts=restarts
    )
    made.offers(wants_command=False)

    def last() -> None:
        made.says("round 1: the workers could not be started: OSError: [Errno 7]")()
        kept.extend(made_standbys[0].persistent_sessions()[-1:])
        made.says("round 2: rank")()
        made.touches("go")()

    assert made.run(*[last] * restarts) == 1 - restarts
    assert find_by_incarnation(made.identity.incarnation, *processes.MARKS) == []
    ran = (tmp_path / "ran").read_text().split("\n")[:-1] if restarts else []
    assert sorted(line.split(maxsplit=1)[1] for line in ran) == (["0 2", "1 2", "2 2"] if restarts else [])
    assert [line.split()[0] for line in ran if line.endswith("2 2")] == [str(pid) for pid in kept]
