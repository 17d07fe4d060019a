"""Runs random faults against a real job, one after another, and checks every recovery."""

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from tests.support.cluster import Agent, cluster, marked, wait_for
from tests.support.workload.worklog import StepCounter, World, complaints

from benchmarks.floor import Floor
from benchmarks.outcomes import Kind, Recovery, say, started

NODES = {"a": 2, "b": 1, "c": 1, "d": 1}
FIRST_NODES = ("a", "b", "c")
FEWEST_NODES = 2

QUIET_S = 1.0
"""A fault comes up to so long after the last one was recovered from: training is under way then."""

HUNG_S = 60.0
"""A job without the next world after so long is counted as hung, and another one takes its place."""

START_S = 180.0

GONE_S = 5.0
"""How long processes of an agent that was killed may take to be gone once the others have gone on."""

CHECKPOINT_EVERY = 20
LAST_CALL_S = 0.5
RESTED_LAST_CALL_S = 6.0
"""The standbys of a joiner have imported torch when it is admitted (hetagent's default is 10)."""
STATUS_DRAINED = 4
"""The exit status of an agent whose node was drained."""

WORKER, AGENT, FIRST, STOPPED, RESUMED, SERVER, ADDED, DRAINED = NAMES = (
    "a worker is killed",
    "another agent is killed",
    "rank 0's agent is killed",
    "an agent is stopped (SIGSTOP)",
    "the stopped agent goes on",
    "the server is killed, started again",
    "a node is added",
    "a node is drained",
)
DRAWN = {
    "worker": WORKER,
    "agent": AGENT,
    "first": FIRST,
    "stop": STOPPED,
    "server": SERVER,
    "drain": DRAINED,
}
"""What is drawn, by the word for it; nodes are added for those that went, and agents that were stopped go on."""


class HungError(Exception):
    """The job did not come back."""


class Campaign:
    """Faults against one job after another; a job ends only when it hangs.

    Args:
        folder: where all of them keep everything.
        drawn: values of `DRAWN`.
        preload: hetagent's --preload.
        rested: no fault comes before every node has its standbys; the time of an added node counts from when it is
            admitted, not from when its agent is started.
    """

    def __init__(
        self,
        folder: Path,
        rng: random.Random,
        floor: Floor,
        lease_s: float,
        drawn: Sequence[str],
        *,
        preload: str = "none",
        rested: bool = False,
    ) -> None:
        goals = {WORKER: 0.4, AGENT: 1.5, FIRST: 1.5, STOPPED: lease_s + 1.0}
        self.kinds = {name: Kind(name, goals.get(name)) for name in NAMES}
        self._drawn = drawn
        self._preload = preload
        self._rested = rested
        self._folder = folder
        self._rng = rng
        self._floor = floor
        self._lease_s = lease_s
        self._jobs = 0
        self._last = self.kinds[WORKER]

    # -- jobs ------------------------------------------------------------------------------------------------

    def run(self, faults: int) -> None:
        """Draw faults until there were so many."""
        while self._tried < faults:
            self._jobs += 1
            flags = ["--nnodes", f"{FEWEST_NODES}:{len(NODES)}", "--max-restarts", "1000000"]
            last_call_s = RESTED_LAST_CALL_S if self._rested else LAST_CALL_S
            flags += ["--restart-wait-s", "0"]  # faults come again and again
            flags += ["--last-call-s", f"{last_call_s}", "--lease-s", f"{self._lease_s}"]
            flags += ["--preload", self._preload]
            with cluster(self._folder / f"job{self._jobs}", *flags) as self._job:
                try:
                    self._begin()
                    while self._tried < faults:
                        self._strike()
                    self._end()
                except (HungError, psutil.NoSuchProcess, subprocess.TimeoutExpired) as error:
                    self._last.hung += 1
                    path = self._folder / f"hung{self._jobs}.txt"
                    path.write_text(f"{error}\n{self._job.report()}\n{self._job.events()}")
                    say(f"HUNG: {error}; see {path}")

    @property
    def _tried(self) -> int:
        return sum(kind.tried for kind in self.kinds.values())

    def _begin(self) -> None:
        self._drained: set[str] = set()
        self._spent = 0
        self._seen = 0  # events
        self._told: set[str] = set()  # complaints
        for name in FIRST_NODES:
            self._start(name)
        size = slots(FIRST_NODES)
        self._world = wait_for(lambda: self._job.log.world(size), "the first world", START_S)
        self._nodes = list(FIRST_NODES)

    def _end(self) -> None:
        """Let the job succeed; whatever is wrong then counts for the last fault."""
        self._job.finish()
        statuses = {name: self._job.agents[name].wait() for name in self._nodes}
        group = self._job.group()
        if set(statuses.values()) != {0} or (group["state"], group["restarts"]) != ("succeeded", self._spent):
            self._wrong(
                f"at the end: {group['state']}, {statuses}, {group['restarts']} of {self._spent} restarts"
            )
        self._last.orphans += len(marked())

    def _start(self, name: str) -> None:
        self._job.agent(name, NODES[name], checkpoint_every=CHECKPOINT_EVERY)

    # -- faults ----------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        if self._rested:
            wait_for(self._all_have_standbys, "standbys on every node", START_S)
        time.sleep(self._rng.uniform(0.0, QUIET_S))
        newer = self._job.log.world(slots(self._nodes), round_above=self._world.round)
        if newer is not None:
            self._wrong(f"round {newer.round} after {self._world.round}, for no reason")
            self._world, self._spent = newer, newer.restart
        missing = len(NODES) - len(self._nodes)
        if missing and (len(self._nodes) == FEWEST_NODES or self._rng.random() < 0.5):
            self._add()
            return
        strikes: dict[str, Callable[[], None]] = {
            WORKER: self._kill_worker,
            AGENT: lambda: self._kill_agent(self._rng.choice(self._nodes_without_master)),
            FIRST: lambda: self._kill_agent(self._master),
            STOPPED: self._stop_agent,
            SERVER: self._kill_server,
            DRAINED: self._drain,
        }
        strikes[self._rng.choice(self._drawn)]()

    def _all_have_standbys(self) -> bool:
        return all(
            len(self._job.agents[name].standbys()) == NODES[name] or self._preload == "none"
            for name in self._nodes
        )

    @property
    def _master(self) -> str:
        return str(self._world.lines[0]["node"])

    @property
    def _nodes_without_master(self) -> list[str]:
        return [name for name in self._nodes if name != self._master]

    def _kill_worker(self) -> None:
        pid = self._rng.choice(sorted(self._world.pids))
        self._recover(WORKER, psutil.Process(pid).kill, spent=1)

    def _kill_agent(self, name: str) -> None:
        kind = FIRST if name == self._master else AGENT
        agent = self._job.agents[name]
        family = psutil.Process(agent.pid).children(recursive=True)
        self._nodes.remove(name)
        self._recover(kind, lambda: agent.send(signal.SIGKILL))
        agent.wait()
        _, alive = psutil.wait_procs(family, GONE_S)
        self._last.orphans += len(alive)

    def _stop_agent(self) -> None:
        """Longer than the lease: the others go on without it; when it goes on itself, it is let in again."""
        name = self._rng.choice(self._nodes)
        agent = self._job.agents[name]
        self._nodes.remove(name)
        self._recover(STOPPED, lambda: agent.send(signal.SIGSTOP), still=name)
        time.sleep(self._rng.uniform(0.0, self._lease_s))
        self._nodes.append(name)
        self._recover(RESUMED, lambda: agent.send(signal.SIGCONT))

    def _add(self) -> None:
        name = self._rng.choice([name for name in NODES if name not in self._nodes])
        if name in self._drained:
            self._job.post(f"nodes/{name}/undrain")
            self._drained.remove(name)
        self._nodes.append(name)
        self._recover(ADDED, lambda: self._start(name))

    def _drain(self) -> None:
        name = self._rng.choice(self._nodes)
        self._nodes.remove(name)
        self._drained.add(name)
        self._recover(DRAINED, lambda: self._job.post(f"nodes/{name}/drain"))
        if (status := self._job.agents[name].wait()) != STATUS_DRAINED:
            self._wrong(f"the agent of the drained node exited with {status}")

    def _kill_server(self) -> None:
        """The workers must not notice: the same ones make steps while it is away, and after."""
        kind = self._try(SERVER)
        agents = [self._job.agents[name] for name in self._nodes]
        back = {agent.name: _times_back(agent) for agent in agents}
        at = time.monotonic()
        self._job.server.kill()
        killed = self._made()
        time.sleep(self._rng.uniform(0.5, self._lease_s))
        if min(self._made().values()) < max(killed.values()) + 2:
            self._wrong("no steps were made while the server was away")
        self._job.server.start()
        self._wait_for(
            lambda: all(_times_back(agent) > back[agent.name] for agent in agents), "the agents' reconnection"
        )
        kind.recoveries.append(Recovery(time.monotonic() - at))
        time.sleep(1.0)  # for a round that should not come
        group, made = self._job.group(), self._made()
        if (group["state"], group["round"]) != ("running", self._world.round):
            self._wrong(
                f"{group['state']} in round {group['round']} after {self._world.round}: {group['reason']}"
            )
        if ended := self._world.pids - marked().keys():
            self._wrong(f"workers have ended: {sorted(ended)}")
        time.sleep(0.2)
        if min(self._made().values()) <= max(made.values()):
            self._wrong("no steps were made after the server was back")
        self._check()

    # -- recoveries ------------------------------------------------------------------------------------------

    def _try(self, name: str) -> Kind:
        self._last = self.kinds[name]
        self._last.tried += 1
        say(
            f"{self._tried}: {name}; {slots(self._nodes)} workers on {', '.join(sorted(self._nodes))} are next"
        )
        return self._last

    def _wrong(self, what: str) -> None:
        self._last.wrong.append(what)
        say(f"WRONG: {what}")

    def _wait_for(self, found: Callable[[], Any], what: str) -> Any:
        try:
            return wait_for(found, what, HUNG_S)
        except TimeoutError as error:
            raise HungError(str(error)) from None

    def _recover(self, name: str, strike: Callable[[], object], *, spent: int = 0, still: str = "") -> None:
        """Strike, and wait for the next world, which has all workers of `_nodes`.

        Args:
            spent: restarts that this has to cost.
            still: a node whose old processes may be there, since its agent cannot end them.
        """
        kind = self._try(name)
        before, size = self._world, slots(self._nodes)
        at = time.monotonic()
        strike()
        world: World = self._wait_for(
            lambda: self._job.log.world(size, round_above=before.round), f"{name}: a world of {size}"
        )
        self._world = world
        self._spent += spent
        made = max(self._made_by(before).values())
        seconds = world.at - at
        parts = self._parts(before, world, at)
        if self._rested and name == ADDED:
            seconds -= parts[0]
        lost = made - world.resumed_from
        kind.recoveries.append(Recovery(seconds, seconds - self._floor.seconds(size), lost, parts))
        say(f"    {seconds:.2f} s = {' + '.join(f'{part:.2f}' for part in parts)}; {lost} steps lost")
        if not 0 <= lost <= CHECKPOINT_EVERY:
            self._wrong(f"{lost} steps lost with a checkpoint every {CHECKPOINT_EVERY}")
        if world.restart != self._spent:
            self._wrong(f"restart {world.restart} in round {world.round}, {self._spent} were to be spent")
        if world.round != before.round + 1:
            self._wrong(f"round {world.round} after {before.round}: one round was to end")
        if {line["node"] for line in world.lines} != set(self._nodes):
            self._wrong(f"round {world.round} is not on {self._nodes}")
        self._check(still)

    def _check(self, still: str = "") -> None:
        """Nothing but the world's processes and standbys is there (or `still`'s), and all that was logged is right."""
        others = {pid for pid, node in marked().items() if pid not in self._world.pids and node != still}
        if strangers := others - self._standbys():  # looked at last: new ones may begin at any time
            self._last.orphans += len(strangers)
            say(f"ORPHANS: {strangers}")
        for what in complaints(self._job.log.lines()):
            if what not in self._told:
                self._told.add(what)
                self._wrong(what)

    def _standbys(self) -> set[int]:
        """The agents' children that were no workers yet; those of a killed agent are not its children any more."""
        booted = time.time() - time.monotonic()
        began: dict[int, float] = {}
        for agent in self._job.agents.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                began |= {child.pid: child.create_time() for child in psutil.Process(agent.pid).children()}
        workers = {  # not those that had the pid before
            line["pid"]
            for line in self._job.log.lines()
            if line["pid"] in began and booted + line["at"] > began[line["pid"]]
        }
        return began.keys() - workers

    def _parts(self, before: World, world: World, at: float) -> tuple[float, ...]:
        """The way to the next world; see `SPAN`. Events are on the wall clock of this machine, to 1 ms."""
        offset = time.time() - time.monotonic()
        moments = {}
        for event in self._job.events(self._seen):
            self._seen = event["number"]
            moments[event["reason"]["code"], event["reason"]["round"]] = (
                datetime.fromisoformat(event["at"]).timestamp() - offset
            )
        ended = moments.get(("round_ended", before.round), at)
        formed = moments.get(("round_formed", world.round), ended)
        return (ended - at, formed - ended, *started(world, formed))

    def _made(self) -> dict[int, int]:
        return self._made_by(self._world)

    def _made_by(self, world: World) -> dict[int, int]:
        """How many steps each process of a world knows to be made."""
        counter = StepCounter(self._job.log.folder)
        return {pid: counter.read(pid) for pid in world.pids}


def slots(nodes: Collection[str]) -> int:
    """How many workers these nodes have together."""
    return sum(NODES[name] for name in nodes)


def _times_back(agent: Agent) -> int:
    return agent.stderr.count("the server is back")
