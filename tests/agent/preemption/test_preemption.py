"""A node whose machine is taken away: who announces that, and what its agent does."""

import re
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.agent.rig import Make, soon
from tests.agent.runloop.test_notice import ASK, SAY, WAIT, running

from hetagent import statuses
from hetagent.node.processes import proctree as processes
from hetagent.preemption.local import PreemptionCommand, read_notice_file
from hetagent.preemption.watching import PreemptionWatch
from hetagent.roundhook import PreemptionNotice
from hetagent.runloop.shutdown import Shutdown
from hetagent.workers.leftovers import OrphanReaper

pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")

MINE = f"preemption-{uuid.uuid4().hex}"


class Told:
    """An announcement that comes once it is set."""

    def __init__(self) -> None:
        self.now: PreemptionNotice | None = None
        self.asked = 0

    def find_notice(self) -> PreemptionNotice | None:
        self.asked += 1
        return self.now


def watch(*sources: Told, grace_s: float = 60.0) -> Callable[[Callable[[str], None]], PreemptionWatch]:
    def make(tell: Callable[[str], None]) -> PreemptionWatch:
        return PreemptionWatch([source.find_notice for source in sources], tell, grace_s, look_s=0.02)

    return make


def reclaim(told: Told, left_s: float | None) -> Callable[[], None]:
    def act() -> None:
        gone_at = None if left_s is None else time.monotonic() + left_s
        told.now = PreemptionNotice("AWS is about to terminate this instance", gone_at)

    return act


def test_workers_save_before_their_machine_is_taken_away(rig: Make) -> None:
    told = Told()
    made = rig(
        f"{ASK} touch up; {WAIT} touch told; {SAY} exit 0", grace_s=25.0, parts={"preemption": watch(told)}
    )
    made.offers(takes_notice=True)
    made.run(made.appears("up"), running(made), reclaim(told, 100.0))
    assert made.agent.shutdown.exit_status(made.agent.outcome, fixed=False) == statuses.RESUME
    assert (made.folder / "told").exists()
    said = " ".join(made.said)
    assert re.search(
        r"AWS is about to terminate this instance: leaving once the workers .*, in 9[\d.]+ s", said
    )
    assert "round 1 is about to end (a is leaving: AWS is about to terminate this instance)" in said
    assert (made.group()["state"], made.group()["restarts"]) == ("waiting", 0)


@pytest.mark.parametrize(("works", "saves"), [(False, False), (True, False), (True, True)])
def test_whoever_was_told_in_time_may_stay_as_long_as_that(works: bool, saves: bool) -> None:
    evicted, taken, left = (Shutdown(25.0, {}) for _ in range(3))
    evicted.begin(signal.SIGTERM, 5.0, 1000.0, works=works, saves=saves)
    action = taken.begin(PreemptionNotice("the cloud", 1100.0), 5.0, 1000.0, works=works, saves=saves)
    left.begin(signal.SIGINT, 5.0, 1000.0, works=works, saves=saves)
    assert (evicted.gone_at, taken.gone_at, left.gone_at) == (1025.0, 1100.0, None)
    assert action.stop == (None if saves else (signal.SIGTERM, 5.0))
    assert taken.exit_status(None, fixed=False) == statuses.RESUME


def test_a_signal_after_it_shortens_the_time_and_does_not_kill() -> None:
    leaving = Shutdown(25.0, {})
    step = leaving.begin(PreemptionNotice("evicted", 1115.0), 30.0, 1000.0, works=True, saves=True)
    assert (step.why, step.save_s, step.stop) == ("evicted", 110.0, None)
    step = leaving.begin(signal.SIGTERM, 30.0, 1010.0, works=True, saves=True)
    assert (step.why, step.save_s, step.stop) == ("SIGTERM", 20.0, None)
    assert leaving.gone_at == 1035.0, "a signal counts from when it came"
    step = leaving.begin(signal.SIGTERM, 30.0, 1012.0, works=True, saves=True)
    assert step.stop == (signal.SIGKILL, 0.0)
    assert leaving.exit_status(None, fixed=False) == statuses.SIGNAL + signal.SIGTERM


@pytest.fixture
def watches() -> Iterator[list[PreemptionWatch]]:
    made: list[PreemptionWatch] = []
    yield made
    for one in made:
        one.close()


def test_what_is_far_off_waits_and_may_be_taken_back(watches: list[PreemptionWatch]) -> None:
    told, said = Told(), list[str]()
    reclaim(told, 900.0)()
    watches.append(watch(told)(said.append))
    watches[0].start()
    soon(lambda: said)
    told.now = None
    asked = told.asked
    soon(lambda: told.asked > asked + 2, "more looks")
    assert watches[0].read_notice() is None
    reclaim(told, 119.0)()
    soon(watches[0].read_notice, "an announcement")
    assert said == ["AWS is about to terminate this instance: leaving 120 s before"]
    watches.append(watch(told, grace_s=600.0)(lambda text: None))
    watches[1].start()
    reclaim(told, 500.0)()
    soon(watches[1].read_notice, "an announcement of one who has a longer grace")


def test_a_source_that_fails_or_hangs_stops_no_other(watches: list[PreemptionWatch]) -> None:
    def hangs() -> None:
        over.wait(60)

    over = threading.Event()
    told, said = Told(), list[str]()
    fails = Mock(side_effect=OSError("nothing but trouble"))
    watches.append(PreemptionWatch([fails, hangs, told.find_notice], said.append, 60.0, look_s=0.02))
    watches[0].start()
    try:
        soon(lambda: fails.call_count > 2, "more looks")
        reclaim(told, None)()
        soon(watches[0].read_notice, "an announcement")
        assert said == ["cannot look for a notice of preemption: OSError: nothing but trouble; trying again"]
    finally:
        over.set()


def test_a_node_whose_machine_is_to_go_does_not_join(rig: Make) -> None:
    told = Told()
    reclaim(told, 60.0)()
    made = rig("touch up", parts={"preemption": watch(told)})
    made.run()
    assert made.agent.shutdown.exit_status(made.agent.outcome, fixed=False) == statuses.RESUME
    assert made.said == ["AWS is about to terminate this instance: leaving"]
    assert not (made.folder / "up").exists()


def test_a_file_that_appears_says_why(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "leave"
    assert read_notice_file(path) is None
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "leave").touch()
    assert read_notice_file(path) == PreemptionNotice(f"{path} is there", None)
    (tmp_path / "sub" / "leave").write_text("\n  maintenance of rack 4\x1b[1m\nmore\n")
    told = read_notice_file(path)
    assert told is not None
    assert told.why.startswith("maintenance of rack 4")
    assert "\x1b" not in told.why


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], PreemptionCommand]]:
    monkeypatch.chdir(tmp_path)
    made: list[PreemptionCommand] = []

    def make(text: str, tell: Callable[[str], None] = lambda text: None) -> PreemptionCommand:
        made.append(PreemptionCommand(text, MINE, tell))
        return made[-1]

    yield make
    for source in made:
        source.close()
    assert processes.find_by_incarnation(MINE, *processes.MARKS) == []


def test_a_command_is_asked_again_until_it_says_so(command: Callable[[str], PreemptionCommand]) -> None:
    source = command("echo x >> runs; test $(wc -l < runs) = 3 && echo a power cut at noon")
    assert soon(source.find_notice) == PreemptionNotice("a power cut at noon", None)


def test_a_command_may_run_for_hours(command: Callable[[str], PreemptionCommand], tmp_path: Path) -> None:
    source = command("echo x >> runs; sleep 3600 & until test -e go; do sleep 0.02; done")
    for _ in range(20):
        assert source.find_notice() is None
        time.sleep(0.01)
    OrphanReaper(MINE, print).kill_all()  # between rounds
    assert source.find_notice() is None
    (tmp_path / "go").touch()
    assert soon(source.find_notice) == PreemptionNotice("the command of --leave-when says so", None)
    assert (tmp_path / "runs").read_text() == "x\n"
    assert processes.find_by_incarnation(MINE, processes.WATCH_FOR) == [], "nor is anything of it left"


def test_a_command_that_is_none_is_told_once(
    command: Callable[..., PreemptionCommand], tmp_path: Path
) -> None:
    said: list[str] = []
    source = command("echo x >> runs; no-such-program --at all", said.append)
    soon(lambda: source.find_notice() or said, "what it says")
    runs = tmp_path / "runs"
    soon(lambda: source.find_notice() or len(runs.read_text().split()) > 2, "more runs")
    assert len(said) == 1
    assert said[0].startswith("--leave-when: its command cannot be run (status 127): ")
    assert "no-such-program" in said[0]
