"""Workers' processes are found by mark, session and descent, and nothing else is ever killed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from tests.support.cluster import wait_for

from hetagent.node.processes import proctree as processes

SLEEP = "import time; time.sleep(300)"
MARK = uuid.uuid4().hex
"""Of this run of the tests only: another one may be under way."""


class Family:
    """Starts processes, tells their pids and leaves none behind."""

    def __init__(self, tmp_path: Path) -> None:
        self._directory = tmp_path
        self._children: list[subprocess.Popen[bytes]] = []
        self.pids: list[int] = []

    def start(
        self, source: str = "", marks: Mapping[str, str] = {}, session: bool = True
    ) -> subprocess.Popen[bytes]:
        """Run a Python program; in it, `tell(pid)` adds to `pids`."""
        told = self._directory / f"told{len(self._children)}"
        prelude = (
            "import os, subprocess, sys\n"
            f"def tell(pid):\n    with open({str(told)!r}, 'a') as f: f.write(f'{{pid}}\\n')\n"
            f"SLEEP = [sys.executable, '-c', {SLEEP!r}]\n"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", f"{prelude}{source}\ntell(0)\n{SLEEP}"],
            env={**os.environ, **marks},
            start_new_session=session,
        )
        self._children.append(child)
        self.pids.append(child.pid)
        wait_for(lambda: told.exists() and "0" in told.read_text().split("\n"))
        self.pids += [int(pid) for pid in told.read_text().split() if pid != "0"]
        return child

    def end(self) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for child in self._children:
            child.wait()


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    family = Family(tmp_path)
    yield family
    family.end()


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if pid in processes.list_processes()]


def test_members_of_a_session_outlive_its_leader(family: Family) -> None:
    child = family.start("open('/proc/self/comm', 'w').write(') R 1 1 (')\ntell(subprocess.Popen(SLEEP).pid)")
    member = family.pids[-1]
    assert Path(f"/proc/{child.pid}/comm").read_text() == ") R 1 1 (\n"
    assert processes.find_session_members([child.pid]) == sorted([child.pid, member])
    child.kill()
    wait_for(lambda: processes.find_session_members([child.pid]) == [member])  # the leader is a zombie now
    child.wait()
    assert processes.find_session_members([child.pid]) == [member]
    assert processes.find_session_members([]) == []


def test_a_process_whose_first_thread_has_ended_is_alive(family: Family) -> None:
    child = family.start(
        "import ctypes, threading, time\n"
        "threading.Thread(target=lambda: (tell(0), time.sleep(300))).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    stat = Path(f"/proc/{child.pid}/stat")
    wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
    assert processes.find_session_members([child.pid]) == [child.pid]


def test_marked_finds_by_environment(family: Family) -> None:
    child = family.start(
        "tell(subprocess.Popen(SLEEP, start_new_session=True).pid)", {"HET_INCARNATION": MARK}
    )
    family.start("", {"HET_INCARNATION": f"{MARK}1"})
    assert processes.find_by_incarnation(MARK) == sorted([child.pid, family.pids[1]])
    assert processes.find_by_incarnation(MARK[:-1]) == []


def test_kill_all_goes_on_until_two_scans_find_nothing_and_says_who_would_not_die() -> None:
    scans: list[list[int]] = [[], [999_999_999], [], []]
    assert processes.kill_all(lambda: scans.pop(0)) == []
    assert scans == []
    assert processes.kill_all(lambda: [1, os.getpid(), 999_999_999], timeout_s=0.05) == [999_999_999]


def test_kill_all_catches_a_chain_of_forks(family: Family) -> None:
    source = (
        "import time\n"
        "end = time.monotonic() + 30\n"
        "if not os.fork():\n"
        "    os.setsid()\n"
        "    while time.monotonic() < end:\n"
        "        if os.fork(): os._exit(0)\n"
        "        time.sleep(0.01)\n"  # a faster one outruns whoever has only signals for quite a while
        "    os._exit(0)\n"
    )
    family.start(source, {"HET_INCARNATION": MARK})
    began = time.monotonic()
    assert processes.kill_all(lambda: processes.find_by_incarnation(MARK)) == []
    assert time.monotonic() - began < 25  # before it ends by itself
    assert processes.find_by_incarnation(MARK) == []


TREE = """
clean = {"PATH": os.environ["PATH"]}
def start(**kwargs):
    tell(subprocess.Popen(SLEEP, **kwargs).pid)
start()
start(start_new_session=True)
start(env=clean)
start(env=clean, start_new_session=True)
middle = f"import subprocess; print(subprocess.Popen({SLEEP}, env={clean}, stdout=subprocess.DEVNULL).pid)"
tell(int(subprocess.check_output([sys.executable, "-c", middle])))
"""


def test_kill_all_of_finds_sessions_and_descendants(family: Family) -> None:
    family.start(TREE, {"HET_INCARNATION": MARK})
    assert len(alive(family.pids)) == 6
    assert processes.kill_incarnation(MARK) == []
    assert alive(family.pids) == []


def test_kill_all_of_spares_the_callers_session_and_others_in_a_session_that_a_worker_does_not_lead(
    family: Family,
) -> None:
    here = family.start("", {"HET_INCARNATION": MARK}, session=False)
    beside = family.start(session=False)
    marked = f"tell(subprocess.Popen(SLEEP, env=os.environ | {{'HET_INCARNATION': '{MARK}'}}).pid)"
    shell = family.start(marked)
    worker = family.pids[-1]
    assert processes.kill_incarnation(MARK) == []
    assert alive(family.pids) == [beside.pid, shell.pid]
    assert not alive([here.pid, worker])


def test_orphans_are_those_whose_agent_is_gone(family: Family) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    marks = {"HET_NODE_ID": MARK, "TORCHELASTIC_RUN_ID": "g1", "HET_AGENT_PID": str(gone.pid)}
    orphan = family.start("", marks)
    family.start("", marks | {"HET_AGENT_PID": str(os.getpid())})
    family.start("", marks | {"HET_AGENT_PID": "garbage"})
    family.start("", marks | {"HET_NODE_ID": f"{MARK}2"})
    other = family.start("", marks | {"TORCHELASTIC_RUN_ID": "g2"})
    assert processes.find_orphans(MARK, "g1") == [orphan.pid]
    assert processes.find_orphans(MARK, "g2") == [other.pid]
    assert processes.kill_tree(lambda: processes.find_orphans(MARK, "g1")) == []
    assert alive(family.pids) == family.pids[1:]


def test_parents_before_children_and_all_are_stopped_before_one_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a shell whose child dies runs its next command; who reads a pipe sees its end when the writer dies."""
    shell = subprocess.Popen(["sh", "-c", "sh -c 'sleep 300; true'; true"], start_new_session=True)
    wait_for(lambda: len(processes.find_session_members({shell.pid})) == 3)
    family = processes.find_session_members({shell.pid})
    parents = [processes.list_processes()[pid].parent for pid in family]
    assert parents[1:] == family[:-1]
    kill, sent = os.kill, list[tuple[int, int]]()

    def noting(pid: int, signum: int) -> None:
        sent.append((pid, signum))
        kill(pid, signum)

    monkeypatch.setattr(os, "kill", noting)
    assert processes.kill_all(lambda: processes.find_session_members({shell.pid})[::-1]) == []
    assert shell.wait() == -signal.SIGKILL
    assert sent[:6] == [(pid, signum) for signum in (signal.SIGSTOP, signal.SIGKILL) for pid in family]


def test_the_cpu_time_of_a_process_is_the_kernels() -> None:
    used = sum(psutil.Process().cpu_times()[:2])
    assert used <= (processes.read_cpu_s(os.getpid()) or 0.0) + 0.02
    assert processes.read_cpu_s(2**22 + 1) is None
