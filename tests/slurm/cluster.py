"""A Slurm cluster of two nodes on this machine, with its own configuration, key and ports; nothing is left of it.

The nodes have two and one GPUs, which are any character devices: Slurm counts them and tells their number.
"""

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
import psutil
import pytest

from tests.support.cluster import WORKLOAD, wait_for
from tests.support.servers import ROOT, Hetserver, free_port
from tests.support.workload.worklog import WorkLog, World, complaints

T = TypeVar("T")

SCRIPTS = ROOT / "deploy" / "slurm"
TOKEN = "a-token-of-the-tests-0123456789abcdef"

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
PACKAGES = "slurm-wlm munge"
KILL_WAIT_S = 20
"""What Slurm leaves between SIGTERM and SIGKILL (seconds)."""

GRACE_S = 20
"""How long a job that is preempted goes on after SIGTERM (seconds)."""

WAIT_S = 90.0

CONFIGURATION = """
ClusterName=het
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={control_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/{track}
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
KillWait={kill_wait_s}
GresTypes=gpu
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={port_1} CPUs=2 RealMemory=2000 Gres=gpu:2 State=UNKNOWN
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={port_2} CPUs=2 RealMemory=2000 Gres=gpu:1 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime={grace_s}
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""
# cred_expire: a requeued job waits for so long; the least that Slurm takes

GPUS = """
NodeName=n1 Name=gpu File=/dev/null
NodeName=n1 Name=gpu File=/dev/zero
NodeName=n2 Name=gpu File=/dev/full
"""


def needs_slurm() -> None:
    """Skip where there is none."""
    if absent := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(
            f"no {', '.join(absent)} here; get it with: apt-get install --no-install-recommends {PACKAGES}"
        )


class Job:
    """A batch job, with its output, and the log of its workers."""

    def __init__(self, slurm: "Slurm", job_id: str, output: Path, log: WorkLog) -> None:
        self.id = job_id
        self.log = log
        self._slurm = slurm
        self._output = output

    @property
    def said(self) -> str:
        """What it and its steps wrote so far."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def facts(self) -> dict[str, str]:
        """What scontrol shows of it; of a heterogeneous job's first component."""
        shown = self._slurm.call("scontrol", "--oneliner", "show", "job", self.id).splitlines()[0]
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def until(self, state: str) -> dict[str, str]:
        """What scontrol shows once the job is in a state."""
        return self.wait_for(
            lambda: facts if (facts := self.facts())["JobState"] == state else None, f"job {state}"
        )

    def world(self, size: int = 3, *, round_above: int = 0) -> World:
        """The newest round in which so many ranks all-reduced, once there is one after a round."""
        what = f"a world of {size} after {round_above}"
        found = self.wait_for(lambda: self.log.world(size, round_above=round_above), what)
        assert complaints(self.log.lines()) == []
        return found

    def group(self, server: Hetserver) -> dict[str, Any]:
        """Its group, as a server shows it."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        reply = httpx.get(f"{server.url}/v1/groups/{self.id}", headers=headers, trust_env=False)
        return dict(reply.json())

    def wait_for(self, found: Callable[[], T | None], what: str) -> T:
        """What `found` returns, as soon as it is true; an error has the job's output."""
        try:
            return wait_for(found, what, WAIT_S)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self.facts()}\n{self.said}") from None


class Slurm:
    """slurmctld and two slurmd, n1 with two GPUs and n2 with one; there on `with`, gone after it.

    Args:
        track: which processes Slurm signals: with linuxproc all that a task has started, with pgid the task alone,
            as with cgroup, which needs a machine of its own.
    """

    def __init__(self, track: str = "linuxproc") -> None:
        self._track = track
        # Not pytest's: the path of munge's socket must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "SBATCH", "HET_", "PET_"))
        } | {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

    def __enter__(self) -> Self:
        files = {
            "key-file": "key",
            "socket": "socket",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        munge = [f"--{flag}={self.folder}/munge.{end}" for flag, end in files.items()]
        munge += ["--foreground", "--force", "--num-threads=2"]  # it does not like folders below /tmp
        try:
            self._configure()
            self._start("munged", *munge, ready=(self.folder / "munge.socket").exists)
            self._start("slurmctld", "-D", "-c", ready=self._controls)
            for node in ("n1", "n2"):
                self._start("slurmd", "-D", "-N", node, ready=lambda node=node: self._idle(node))  # type: ignore[misc]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _configure(self) -> None:
        self.folder.chmod(0o755)
        for name in ("state", "n1", "n2", "log"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        values = {"kill_wait_s": KILL_WAIT_S, "grace_s": GRACE_S, "track": self._track, "folder": self.folder}
        ports = {name: free_port() for name in ("control_port", "port_1", "port_2")}
        text = CONFIGURATION.format(user=getpass.getuser(), **values, **ports)
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text(GPUS)

    def _start(self, *command: str, ready: Callable[[], bool]) -> None:
        """Start a daemon, which ends with this process however that ends."""
        name = "-".join([command[0], *command[3:4]]) if command[0] == "slurmd" else command[0]
        log = self.folder / "log" / name
        with log.open("wb") as out:
            daemon = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._daemons.append(daemon)
        until = time.monotonic() + 30.0
        while not ready():
            if daemon.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"{name} did not get ready:\n{log.read_text(errors='replace')}")
            time.sleep(0.1)

    def _controls(self) -> bool:
        done = subprocess.run(
            ["scontrol", "ping"], env=self.environment, capture_output=True, text=True, check=False
        )
        return " is UP" in done.stdout

    def _idle(self, node: str) -> bool:
        return self.call("sinfo", "--noheader", "--nodes", node, "--format", "%t").strip() == "idle"

    def call(self, *command: str, **environment: str) -> str:
        """What one of Slurm's programs prints."""
        done = subprocess.run(
            list(command),
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}"
        return str(done.stdout)

    def submit(self, folder: Path, *words: str, **environment: str) -> Job:
        """Submit a job that writes into a folder, of which one part is its home and working directory, too."""
        home = folder / "job"
        home.mkdir(parents=True, exist_ok=True)
        output = home / "job.out"
        there = ("--parsable", f"--chdir={home}", f"--output={output}")
        said = self.call("sbatch", *there, *words, **{"HOME": str(home), **environment})
        return Job(self, said.strip(), output, WorkLog(folder / "work"))

    def train(
        self,
        folder: Path,
        script: str,
        *flags: str,
        server: Hetserver | None = None,
        nodes: Sequence[str] = ("--nodes=2", "--gpus=3"),
        work: Sequence[str | Path] = (WORKLOAD,),
        **environment: str,
    ) -> Job:
        """Submit one of deploy/slurm's scripts.

        Args:
            flags: of hetagent.
            server: where the script starts none.
            work: the workload, and its options.
        """
        if server is not None:
            environment |= {"HET_SERVER": server.url, "HET_TOKEN_FILE": str(server.token_file)}
        workload, *options = map(str, work)
        words = ["--device", "cpu", *flags, workload, "--into", str(folder / "work"), *options]
        return self.submit(folder, *nodes, str(SCRIPTS / script), *words, **environment)

    def processes(self) -> list[psutil.Process]:
        """All that was started by this cluster and still lives."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SLURM_CONF") == self.environment["SLURM_CONF"]:
                    found.append(process)
                elif process.name().startswith("slurmstepd"):  # writes its title over its environment
                    sockets = process.net_connections(kind="unix")
                    if any(str(self.folder) in str(one.laddr) for one in sockets):
                        found.append(process)
        return found

    def _cancel_all(self) -> None:
        """Have the jobs end; Slurm kills what does not."""
        self.call("scancel", f"--user={getpass.getuser()}")
        until = time.monotonic() + KILL_WAIT_S + 10
        while self.call("squeue", "--noheader") and time.monotonic() < until:
            time.sleep(0.2)

    def close(self) -> None:
        """End everything, and remove what it wrote."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired, OSError):
            self._cancel_all()
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons:
            try:
                daemon.wait(5.0)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
