"""As the first process of a container hetagent reaps orphans, and is reached by signals, like any other program."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import termios
from pathlib import Path

import psutil
import pytest
from tests.support.cluster import wait_for

UNSHARE = ("unshare", "--fork", "--pid", "--mount-proc", "--kill-child")


def can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not can_unshare(), reason="needs root and PID namespaces")

PRELUDE = """
import os, signal, subprocess, sys, time
from hetagent.node.processes import init
assert os.getpid() == 1
init.run_below_init()
assert os.getpid() != 1

def states():
    found = {}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                found[int(pid)] = file.read().rpartition(")")[2].split()[0]
        except OSError:
            pass
    return found

def until(condition):
    while not condition():
        time.sleep(0.01)
"""


def in_container(source: str, folder: Path, terminal: int | None = None) -> "subprocess.Popen[str]":
    """Run a Python program as pid 1 of a PID namespace, at a terminal if there is one."""

    def control() -> None:
        if terminal is not None:
            os.setsid()
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    return subprocess.Popen(
        [*UNSHARE, sys.executable, "-c", PRELUDE + source],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL if terminal is None else terminal,
        stdout=subprocess.PIPE if terminal is None else terminal,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=control,  # noqa: PLW1509 (no threads here)
    )


def test_orphans_are_reaped_and_the_statuses_of_own_children_are_not_stolen(tmp_path: Path) -> None:
    made = in_container(
        "own = [subprocess.Popen(['sh', '-c', f'exit {number}']) for number in (3, 4)]\n"
        "for _ in range(5):\n"
        "    subprocess.run(['sh', '-c', 'setsid sleep 0.01 & sleep 0.01 & echo $! >> orphans'], check=True)\n"
        "pids = {int(pid) for pid in open('orphans').read().split()}\n"
        "until(lambda: not pids & states().keys())\n"
        "until(lambda: list(states().values()).count('Z') == len(own))\n"
        "assert [one.wait() for one in own] == [3, 4]\n"
        "sys.exit(7)\n",
        tmp_path,
    )
    said, _ = made.communicate(timeout=30)
    assert (made.returncode, said) == (7, "")


def test_signals_are_passed_on_once(tmp_path: Path) -> None:
    made = in_container(
        "got = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: got.append('term'))\n"
        "open('up', 'w').close()\n"
        "until(lambda: got)\n"
        "time.sleep(0.1)\n"
        "print(got)\n",
        tmp_path,
    )
    wait_for((tmp_path / "up").exists)
    [init] = psutil.Process(made.pid).children()
    assert init.memory_info().rss < 20_000_000
    init.send_signal(signal.SIGTERM)
    said, _ = made.communicate(timeout=30)
    assert (made.returncode, said) == (0, "['term']\n")


def test_ctrl_c_at_a_terminal_comes_once(tmp_path: Path) -> None:
    """The terminal sends it to a whole process group: not to pid 1, which would pass it on, and the agent as well."""
    master, slave = os.openpty()
    source = (
        "got = []\n"
        "signal.signal(signal.SIGINT, lambda *_: got.append('int'))\n"
        "open('up', 'w').close()\n"
        "until(lambda: got)\n"
        "time.sleep(0.1)\n"
        "open('got', 'w').write(str(got))\n"
    )
    made = in_container(source, tmp_path, terminal=slave)
    os.close(slave)
    wait_for((tmp_path / "up").exists)
    os.write(master, b"\x03")
    assert made.wait(30) == 0
    assert (tmp_path / "got").read_text() == "['int']"
    os.close(master)


def test_a_signal_that_the_agent_does_not_handle_ends_it(tmp_path: Path) -> None:
    """For pid 1 itself the kernel would ignore it; and what is left has time to end, as a guardian needs it."""
    made = in_container(
        "subprocess.Popen(['sh', '-c', 'sleep 0.5; touch cleaned'], start_new_session=True)\n"
        "open('up', 'w').close()\n"
        "time.sleep(100)\n",
        tmp_path,
    )
    wait_for((tmp_path / "up").exists)
    [init] = psutil.Process(made.pid).children()
    init.send_signal(signal.SIGTERM)
    said, _ = made.communicate(timeout=30)
    assert (made.returncode, said) == (128 + signal.SIGTERM, "")
    assert (tmp_path / "cleaned").exists()


def test_an_agent_in_a_container_leaves_no_zombies(tmp_path: Path) -> None:
    """Orphans of workers: in every round there were some."""
    worker = (
        "for i in 1 2 3 4; do (setsid true &); (true &); done; "
        "for i in $(seq 500); do grep -hs '^State:.Z' /proc/[0-9]*/status > zombies || exit 0; sleep 0.02; done; exit 9"
    )
    done = subprocess.run(
        [
            *(
                *UNSHARE,
                sys.executable,
                "-m",
                "hetagent.cli.main",
                "--standalone",
                "--gpus",
                "1",
                "--device",
                "cpu",
            ),
            *("--max-restarts", "0", "--no-python", "sh", "-c", worker),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
