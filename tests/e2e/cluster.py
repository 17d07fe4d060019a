"""A real job on this machine: one hetserver, several hetagents as processes, and a log of what their workers saw."""

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

from tests.servers import Hetserver
from tests.worklog import WorkLog, complaints

T = TypeVar("T")

WORKLOAD = Path(__file__).parent.parent / "workload.py"
WAIT_S = 60.0

THREE = {"a": 2, "b": 1, "c": 1}
PAIR = {"a": 2, "b": 1}
"""Slots of uneven nodes, by name: what `Cluster.start` takes."""

RUN = uuid.uuid4().hex
"""In the environment of all that these tests start: another run of them may be under way."""


def wait_for(found: Callable[[], T | None], what: str, timeout_s: float = WAIT_S) -> T:
    """What `found` returns, as soon as it is true.

    Raises:
        TimeoutError: it was not within `timeout_s` seconds.
    """
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if result := found():
            return result
        time.sleep(0.01)
    raise TimeoutError(f"{what}: not within {timeout_s:g} s")


class Agent:
    """A hetagent process with its output in files."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.name = name
        self.process = process
        self._folder = folder

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        """What it and its workers said so far."""
        return (self._folder / f"{self.name}.err").read_text(errors="replace")

    def workers(self) -> list[psutil.Process]:
        """Its worker processes, by local rank."""
        found: dict[int, psutil.Process] = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid).children():
                with contextlib.suppress(psutil.Error, KeyError):
                    if child.status() != psutil.STATUS_ZOMBIE:
                        found[int(child.environ()["LOCAL_RANK"])] = child
        return [found[rank] for rank in sorted(found)]

    def send(self, signum: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, signum)

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Its exit status."""
        return self.process.wait(timeout_s)


class Cluster:
    """One group of agents under one server.

    Args:
        folder: where state and logs go.
        flags: given to every agent.
        server: where it is not one of its own on loopback.

    Attributes:
        mark: the number of an event; `told` leaves out what was before it.
    """

    def __init__(self, folder: Path, *flags: str, server: Hetserver | None = None) -> None:
        self.folder = folder
        self.flags = flags
        self.log = WorkLog(folder / "workload")
        self.server = server or Hetserver(store=f"sqlite:{folder / 'state.db'}")
        self.agents: dict[str, Agent] = {}
        self._all: list[Agent] = []
        self._http = httpx.Client(trust_env=False)
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
        steps: int = 0,
        checkpoint_every: int = 0,
    ) -> Agent:
        """Start an agent with CPU workers; its script is the workload unless another one is named."""
        words = [script, *args] if script is not None else [str(WORKLOAD), "--into", str(self.log.folder)]
        if do:
            words += ["--do", do]
        if steps:
            words += ["--steps", str(steps)]
        if checkpoint_every:
            words += ["--checkpoint-every", str(checkpoint_every)]
        own = [
            "--gpus",
            str(gpus),
            "--device",
            "cpu",
            "--server",
            self.server.url,
            "--group",
            "job",
            "--node-id",
            name,
        ]
        command = [
            *self.launcher(name),
            sys.executable,
            "-m",
            "hetagent.cli",
            *own,
            *self.flags,
            *flags,
            *words,
        ]
        return self.run(name, command)

    def run(self, name: str, command: Sequence[str], env: Mapping[str, str] = {}) -> Agent:
        """Start a node's program, whatever it is.

        Args:
            env: more of its environment.
        """
        environment = os.environ | {"HET_TEST_RUN": RUN} | env
        with (self.folder / f"{name}.err").open("ab") as err:
            process = subprocess.Popen(
                command, stdout=err, stderr=err, stdin=subprocess.DEVNULL, env=environment
            )
        agent = Agent(name, process, self.folder)
        self.agents[name] = agent
        self._all.append(agent)
        return agent

    def start(self, slots: Mapping[str, int], do: str = "") -> int:
        """Start agents by name; the number of the first round once all its workers have all-reduced."""
        for name, gpus in slots.items():
            self.agent(name, gpus, do=do)
        return self.world(sum(slots.values()))

    def launcher(self, name: str) -> list[str]:
        """What the command line of a node's agent begins with; what it starts keeps its pid."""
        return []

    def ask(self, method: str, path: str = "") -> httpx.Response:
        """The server's answer to a request about the group."""
        return self._http.request(method, f"{self.server.url}/v1/groups/job{path}")

    def group(self) -> dict[str, Any]:
        """The group as the API shows it, {} before it exists."""
        reply = self.ask("GET")
        body: dict[str, Any] = reply.json() if reply.status_code == 200 else {}
        return body

    def post(self, path: str) -> dict[str, Any]:
        """Act on the group."""
        body: dict[str, Any] = self.ask("POST", f"/{path}").json()
        return body

    def events(self, after: int = 0) -> list[dict[str, Any]]:
        """The group's history, from the event after a number on."""
        body = self.ask("GET", f"/events?after={after}").json()
        events: list[dict[str, Any]] = body["events"]
        return events

    def told(self, kind: str) -> list[str]:
        """The texts of the group's events of one kind, after event number `mark`."""
        return [event["text"] for event in self.events(self.mark) if event["kind"] == kind]

    def pids(self, *names: str) -> set[int]:
        """The workers of some agents, of all where none is named."""
        agents = [self.agents[name] for name in names or self.agents]
        return {worker.pid for agent in agents for worker in agent.workers()}

    def lines(self, **where: object) -> list[dict[str, Any]]:
        """What workers logged, restricted to lines with these values."""
        return [line for line in self.log.lines() if all(line[key] == value for key, value in where.items())]

    def world(self, size: int, *, round_above: int = 0) -> int:
        """Wait for a round newer than `round_above` in which all `size` ranks have all-reduced; its number."""
        found = self.wait_for(
            lambda: self.log.world(size, round_above=round_above),
            f"a world of {size} after round {round_above}",
        )
        assert not (wrong := self.complaints()), wrong
        return found.round

    def progress(self, number: int) -> None:
        """Wait until the workers of a round have gone on."""
        steps = max(line["step"] for line in self.lines(round=number))
        self.wait_for(lambda: max(line["step"] for line in self.lines(round=number)) > steps, "progress")

    def complaints(self) -> list[str]:
        """What is wrong with what workers logged."""
        return complaints(self.log.lines())

    def finish(self) -> None:
        """Tell the workload to end well."""
        self.log.finish()

    def finish_all(self, *names: str) -> None:
        """Let the workload end; every named agent must exit with 0."""
        self.finish()
        statuses = {name: self.agents[name].wait() for name in names}
        assert statuses == dict.fromkeys(names, 0), self.report()

    def end_well(self, *names: str) -> None:
        """Let the workload end, as the named agents must: none exits before the group has succeeded."""
        self.finish_all(*names)
        assert self.group()["state"] == "succeeded", self.report()

    def wait_for(self, found: Callable[[], T | None], what: str, timeout_s: float = WAIT_S) -> T:
        """The same as the function, but an error says what goes on in the group."""
        try:
            return wait_for(found, what, timeout_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.report()}") from None

    def report(self) -> str:
        """Everything that explains a failed test."""
        try:
            parts = [json.dumps(self.group(), indent=1)]
        except httpx.HTTPError as error:
            parts = [f"no server: {error}"]
        parts += [f"--- {agent.name}\n{agent.stderr}" for agent in self._all]
        return "\n".join(parts)


def standalone(*words: str) -> str:
    """What `hetagent --standalone` and its workers say, as node a, of a job that must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "hetagent.cli", "--standalone", "--device", "cpu", "--node-id", "a", *words],
        env=os.environ | {"HET_TEST_RUN": RUN},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def marked() -> dict[int, str]:
    """Living processes of this run's workers, and what these started, each with the node that it belongs to."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ() if process.status() != psutil.STATUS_ZOMBIE else {}
            if environment.get("HET_TEST_RUN") == RUN and "HET_NODE_ID" in environment:
                found[process.pid] = environment["HET_NODE_ID"]
    return found


def leftovers(node_id: str) -> list[int]:
    """Processes that still bear the mark of a node's workers."""
    return [pid for pid, node in marked().items() if node == node_id]


@contextlib.contextmanager
def cluster(folder: Path, *flags: str) -> Iterator[Cluster]:
    """A cluster for the length of a block."""
    with Cluster(folder, *flags) as made:
        yield made
