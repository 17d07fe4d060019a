"""Runs a real job on this machine: one hetserver, several hetagents, and a log of what their workers saw."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
import psutil

from tests.support.programs.start import COLD, Process, start_program
from tests.support.servers import Hetserver
from tests.support.workload.worklog import WorkLog, complaints

T = TypeVar("T")

HETAGENT = (sys.executable, "-m", "hetagent.cli.main")
WORKLOAD = Path(__file__).with_name("workload") / "worker.py"
WAIT_S = 60.0

THREE = {"a": 2, "b": 1, "c": 1}
PAIR = {"a": 2, "b": 1}
"""Slots of uneven nodes, by name, for `Cluster.start`."""

RUN = uuid.uuid4().hex
"""Marks every process of this run in its environment (`HETRDZV_TEST_RUN`), since another run may be under way. The name
does not begin with `HET_`: standbys are started without such variables, and workers made of them would not be found."""

NO_STANDBYS = {"HET_PRELOAD": "none"}
"""Unless a test or a benchmark asks for them (`--preload`): most of their workers have no torch to import."""


def wait_for(found: Callable[[], T | None], what: str = "it", timeout_s: float = WAIT_S) -> T:
    """Call `found` until it returns something true, and return that.

    Raises:
        TimeoutError: it did not within `timeout_s` seconds.
    """
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if result := found():
            return result
        time.sleep(0.01)
    raise TimeoutError(f"{what}: not within {timeout_s:g} s")


class Agent:
    """A hetagent process whose output goes to a file."""

    def __init__(self, name: str, process: Process, folder: Path) -> None:
        self.name = name
        self.process = process
        self._folder = folder

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        """What it and its workers have written so far."""
        return (self._folder / f"{self.name}.err").read_text(errors="replace")

    def workers(self) -> list[psutil.Process]:
        """Its worker processes, by local rank. One that was a standby does not show its rank, and is not found."""
        found: dict[int, psutil.Process] = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid).children():
                with contextlib.suppress(psutil.Error, KeyError):
                    if child.status() != psutil.STATUS_ZOMBIE:
                        found[int(child.environ()["LOCAL_RANK"])] = child
        return [found[rank] for rank in sorted(found)]

    def standbys(self) -> list[psutil.Process]:
        """Its standbys that are ready."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid).children():
                with contextlib.suppress(psutil.Error):
                    if child.name() == "het-standby":
                        found.append(child)
        return found

    def send(self, signum: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, signum)

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Its exit status."""
        return self.process.wait(timeout_s)


class Cluster:
    """One group of agents with one server.

    Args:
        folder: for state and logs.
        flags: passed to every agent.
        server: to use instead of one of its own on loopback.

    Attributes:
        notice: whether workers save before a planned stop.
        light: whether workers all-reduce without torch, which starts much faster (see workload/worker.py).
        mark: an event number; `told` leaves out what came before it.
    """

    def __init__(self, folder: Path, *flags: str, server: Hetserver | None = None) -> None:
        self.folder = folder
        self.flags = flags
        self.log = WorkLog(folder / "workload")
        self.server = server or Hetserver(store=f"sqlite:{folder / 'state.db'}")
        self.agents: dict[str, Agent] = {}
        self._all: list[Agent] = []
        self._http = httpx.Client(trust_env=False, timeout=30.0)  # agents have 10 s to show stacks
        self.light = False
        self.notice = False
        self.mark = 0

    def __enter__(self) -> Self:
        self.server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self._all:
            if agent.process.poll() is None:
                agent.send(signal.SIGCONT)
                agent.process.kill()
            agent.process.wait()
        self.server.__exit__(None, None, None)
        self._http.close()

    def agent(
        self,
        name: str,
        gpus: int,
        *flags: str,
        script: str | None = None,
        args: Sequence[str] = (),
        do: str = "",
        checkpoint_every: int = 0,
    ) -> Agent:
        """Start an agent with CPU workers that run the workload, or `script`."""
        words = [script, *args] if script is not None else [str(WORKLOAD), "--into", str(self.log.folder)]
        if script is None and self.light and not COLD:
            words += ["--light"]
        if script is None and self.notice:
            words += ["--notice"]
        if do:
            words += ["--do", do]
        if checkpoint_every:
            words += ["--checkpoint-every", str(checkpoint_every)]
        own = f"--gpus {gpus} --device cpu --server {self.server.url} --group job --node-id {name}".split()
        agent = [*self.launcher(name), *HETAGENT, *own]
        return self.run(name, [*agent, *self.flags, *flags, *words])

    def run(self, name: str, command: Sequence[str], env: Mapping[str, str] = {}) -> Agent:
        """Start any program as a node.

        Args:
            env: added to its environment.
        """
        environment = NO_STANDBYS | os.environ | {"HETRDZV_TEST_RUN": RUN} | env
        with (self.folder / f"{name}.err").open("ab") as err:
            process = start_program(command, env=environment, stdout=err, stderr=err)
        agent = Agent(name, process, self.folder)
        self.agents[name] = agent
        self._all.append(agent)
        return agent

    def start(self, slots: Mapping[str, int], do: str = "") -> int:
        """Start agents, wait until all workers of the first round have all-reduced, and return its number."""
        for name, gpus in slots.items():
            self.agent(name, gpus, do=do)
        return self.world(sum(slots.values()))

    def launcher(self, name: str) -> list[str]:
        """A command prefix for a node's agent, which must keep the pid."""
        return []

    def ask(self, method: str, path: str = "") -> httpx.Response:
        """Send the server a request about the group."""
        return self._http.request(method, f"{self.server.url}/v1/groups/job{path}")

    def group(self) -> dict[str, Any]:
        """The group as the API shows it; {} where there is none, or no answer."""
        reply = self.ask("GET")
        body: dict[str, Any] = reply.json() if reply.status_code == 200 else {}
        return body

    def post(self, path: str) -> dict[str, Any]:
        """Post to the group."""
        body: dict[str, Any] = self.ask("POST", f"/{path}").json()
        return body

    def events(self, after: int = 0) -> list[dict[str, Any]]:
        """The group's events with a number above `after`."""
        body = self.ask("GET", f"/events?after={after}").json()
        events: list[dict[str, Any]] = body["events"]
        return events

    def told(self, code: str) -> list[str]:
        """The messages of the group's events of one code since `mark`."""
        reasons = [event["reason"] for event in self.events(self.mark)]
        return [reason["message"] for reason in reasons if reason["code"] == code]

    def pids(self, *names: str) -> set[int]:
        """The pids of the workers of some agents; of all if none is named."""
        agents = [self.agents[name] for name in names or self.agents]
        return {worker.pid for agent in agents for worker in agent.workers()}

    def standbys(self, count: int, timeout_s: float = WAIT_S) -> set[int]:
        """Wait until so many standbys of all agents are ready; returns their pids."""

        def found() -> set[int]:
            pids = {standby.pid for agent in self.agents.values() for standby in agent.standbys()}
            return pids if len(pids) == count else set()

        return self.wait_for(found, f"{count} standbys", timeout_s)

    def lines(self, **where: object) -> list[dict[str, Any]]:
        """The workers' log lines that have these values."""
        return [line for line in self.log.lines() if all(line[key] == value for key, value in where.items())]

    def world(self, size: int, *, round_above: int = 0) -> int:
        """Wait for a round above `round_above` in which all `size` ranks have all-reduced; return its number."""
        found = self.wait_for(
            lambda: self.log.world(size, round_above=round_above),
            f"a world of {size} after round {round_above}",
        )
        assert not (wrong := self.complaints()), wrong
        return found.round

    def progress(self, number: int) -> None:
        """Wait until the workers of a round have made more steps."""
        steps = max(line["step"] for line in self.lines(round=number))
        self.wait_for(lambda: max(line["step"] for line in self.lines(round=number)) > steps, "progress")

    def complaints(self) -> list[str]:
        """What is wrong with what workers logged."""
        return complaints(self.log.lines())

    def finish(self) -> None:
        """Tell the workload to succeed."""
        self.log.finish()

    def finish_all(self, *names: str) -> None:
        """Let the workload succeed; every named agent must exit with status 0."""
        self.finish()
        statuses = {name: self.agents[name].wait() for name in names}
        assert statuses == dict.fromkeys(names, 0), self.report()

    def end_well(self, *names: str) -> None:
        """Let the workload succeed; the named agents must exit with status 0, and the group must have succeeded."""
        self.finish_all(*names)
        assert self.group()["state"] == "succeeded", self.report()

    def wait_for(self, found: Callable[[], T | None], what: str, timeout_s: float = WAIT_S) -> T:
        """Like the function, but the error includes `report`."""
        try:
            return wait_for(found, what, timeout_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.report()}") from None

    def report(self) -> str:
        """Everything that may explain a failure: the group and all output."""
        try:
            parts = [json.dumps(self.group(), indent=1)]
        except httpx.HTTPError as error:
            parts = [f"no server: {error}"]
        parts += [f"--- {agent.name}\n{agent.stderr}" for agent in self._all]
        return "\n".join(parts)


def standalone(*words: str) -> str:
    """Run `hetagent --standalone` as node a; the job must succeed. Returns the output."""
    done = alone(*words)
    assert done.returncode == 0, done.stdout
    return done.stdout


def alone(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run `hetagent --standalone` on CPUs as node a to its end; stderr is in stdout."""
    return subprocess.run(
        [*HETAGENT, "--standalone", "--device", "cpu", "--node-id", "a", *words],
        env=NO_STANDBYS | os.environ | {"HETRDZV_TEST_RUN": RUN},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )


def marked() -> dict[int, str]:
    """The living processes of this run's workers and their descendants, by pid, each with its node."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ() if process.status() != psutil.STATUS_ZOMBIE else {}
            if environment.get("HETRDZV_TEST_RUN") == RUN and "HET_INCARNATION" in environment:
                found[process.pid] = environment["HET_NODE_ID"]
    return found


def leftovers(node_id: str) -> list[int]:
    """The pids of processes that still carry the mark of a node's workers."""
    return [pid for pid, node in marked().items() if node == node_id]


@contextlib.contextmanager
def cluster(folder: Path, *flags: str) -> Iterator[Cluster]:
    """Run a cluster for the length of a block."""
    with Cluster(folder, *flags) as made:
        yield made
