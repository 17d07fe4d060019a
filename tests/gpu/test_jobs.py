"""Jobs on GPUs: what a restart costs and frees, what standbys hold, and who is named when a worker fails or hangs."""

import contextlib
import itertools
import json
import os
import re
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from hetagent.standby.waiting import GPU_FILES
from tests.gpu.machine import START_S, TRAIN, Machine, in_use
from tests.support.cluster import PAIR, WORKLOAD, Cluster, cluster

pytestmark = [pytest.mark.gpu, pytest.mark.cold, pytest.mark.timeout(600)]

Seen = Callable[[str], None]
WORLD = sum(PAIR.values())
SNAPPED = WORKLOAD.with_name("snapped.py")
KILLS = 3
SPAN = {
    "noticed": "",
    "old workers gone, memory free": "",
    "script begins": "script",
    "torch": "torch",
    "context": "context",
    "NCCL": "collective",
    "first step": "step",
}
"""The parts of a restart; the last five end with a note of the last rank."""


class Job:
    """Three ranks on two nodes that train until they are told to finish."""

    def __init__(self, made: Cluster, folder: Path) -> None:
        self.cluster = made
        self._folder = folder

    def notes(self, what: str, number: int) -> dict[int, dict[str, Any]]:
        """What the ranks of a round have noted."""
        with contextlib.suppress(FileNotFoundError):
            lines = map(json.loads, (self._folder / "notes").read_text(encoding="utf-8").splitlines())
            return {one["rank"]: one for one in lines if (one["what"], one["round"]) == (what, number)}
        return {}

    def world(self, after: int = 0) -> int:
        """Wait for a round after `after` in which all ranks have made a step."""

        def there() -> int:
            number = int(self.cluster.group().get("round", 0))
            return number if number > after and len(self.notes("step", number)) == WORLD else 0

        return self.cluster.wait_for(there, f"a world after round {after}", START_S)

    def pids(self, number: int) -> dict[int, int]:
        """The workers of a round, by rank."""
        return {rank: one["pid"] for rank, one in self.notes("script", number).items()}

    def standbys(self) -> list[int]:
        """The pids of the standbys, once there is one for each worker."""

        def ready() -> list[int]:
            found = [one.pid for agent in self.cluster.agents.values() for one in agent.standbys()]
            return found if len(found) == WORLD else []

        return self.cluster.wait_for(ready, "standbys", START_S)

    def do(self, number: int, rank: int, what: str) -> None:
        """Have a rank do something else than train."""
        new = self._folder / "do.new"
        new.write_text(json.dumps({"round": number, "rank": rank, "what": what}), encoding="utf-8")
        new.rename(self._folder / "do")

    def why(self, number: int) -> str:
        """Why a round has ended."""

        def ended() -> list[str]:
            reasons = [one["reason"] for one in self.cluster.events()]
            mine = [one for one in reasons if (one["code"], one["round"]) == ("round_ended", number)]
            return [one["message"] for one in mine]

        return self.cluster.wait_for(ended, f"the end of round {number}", START_S)[0]

    def moments(self) -> dict[tuple[str, int], float]:
        """When (monotonic seconds) what happened to which round, by the server's events, which are kept to 1 ms."""
        offset = time.time() - time.monotonic()
        events = self.cluster.events()
        at = [datetime.fromisoformat(one["at"]).timestamp() - offset for one in events]
        named = [(one["reason"]["code"], one["reason"]["round"]) for one in events]
        return dict(zip(named, at, strict=True))

    def parts(self, before: int, number: int, at: float) -> list[float]:
        """Seconds of each part of a restart, and of all of it; see `SPAN`."""
        told = self.moments()
        moments = [at, told["round_ended", before], told["round_formed", number]]
        moments += [
            max(one["at"] for one in self.notes(what, number).values()) for what in SPAN.values() if what
        ]
        return [
            *(later - sooner for sooner, later in itertools.pairwise(moments)),
            moments[-1] - at,
        ]

    def finish(self) -> None:
        """Let the job succeed."""
        (self._folder / "finish").touch()
        statuses = {name: agent.wait(START_S) for name, agent in self.cluster.agents.items()}
        assert statuses == dict.fromkeys(PAIR, 0), self.cluster.report()


@contextlib.contextmanager
def running(
    machine: Machine, folder: Path, *flags: str, env: Mapping[str, str] = {}, script: Sequence[str] = ()
) -> Iterator[Job]:
    """A job for the length of a block, with the default --preload."""
    script = script or machine.words(folder)
    with cluster(folder) as made:
        for name in PAIR:
            where = ["--server", made.server.url, "--group", "job", "--node-id", name, "--nnodes", "2"]
            often = ["--max-restarts", "9", "--stop-timeout-s", "5"]
            own = (flag.format(name=name) for flag in flags)
            words = [*machine.slots(name), *where, *often, *own, *script]
            environ = {"HET_PRELOAD": "", **machine.environ, **env}
            made.run(name, [sys.executable, "-m", "hetagent.cli.main", *words], environ)
        yield Job(made, folder)


def gpu_files(pid: int) -> list[str]:
    """The devices that a process has open."""
    links = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(descriptor))
    return [link for link in links if link.startswith(GPU_FILES)]


@contextlib.contextmanager
def looking() -> Iterator[list[tuple[float, set[int]]]]:
    """Which processes use GPUs, again and again: when each look began (monotonic seconds), and their pids."""
    looks: list[tuple[float, set[int]]] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            at = time.monotonic()
            looks.append((at, in_use()))
            over.wait(0.05)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield looks
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("preload", ["default", "none"])
def test_restart(machine: Machine, tmp_path: Path, seen: Seen, preload: str) -> None:
    """A killed worker is named, and the job goes on; median of three, by part"""
    with running(machine, tmp_path, *(() if preload == "default" else ("--preload", preload))) as job:
        number, spans = job.world(), []
        for kill in range(KILLS):
            if preload == "default":
                job.standbys()
            at, victim = time.monotonic(), kill % WORLD
            os.kill(job.pids(number)[victim], signal.SIGKILL)
            before, number = number, job.world(number)
            assert re.search(rf"rank {victim} .*SIGKILL", job.why(before)), job.why(before)
            spans.append(job.parts(before, number, at))
        medians = [statistics.median(column) for column in zip(*spans, strict=True)]
        seen(", ".join(f"{name} {part:.2f} s" for name, part in zip([*SPAN, "in all"], medians, strict=True)))
        job.finish()


def test_memory(machine: Machine, tmp_path: Path, seen: Seen) -> None:
    """Standbys and agents hold no GPU; workers that were killed hold none when the next round is formed"""
    with running(machine, tmp_path) as job:
        number = job.world()
        standbys, agents = job.standbys(), {agent.pid for agent in job.cluster.agents.values()}
        assert [gpu_files(pid) for pid in standbys] == [[]] * WORLD
        using, old = in_use(), set(job.pids(number).values())
        assert not using & {*standbys, *agents}
        with looking() as looks:
            os.kill(min(old), signal.SIGKILL)
            after = job.world(number)
        since = job.moments()["round_formed", after]
        late = [pids & old for at, pids in looks if at >= since]
        assert late, looks
        assert not any(late), late
        if machine.device == "cuda":
            unseen = "the driver names no processes here: only files were looked at"
            seen(f"{len(late)} looks" if using & old else unseen)
        job.finish()


def test_preload_auto(machine: Machine, tmp_path: Path, seen: Seen) -> None:
    """--preload auto leaves out a module that takes a GPU while it is imported, and the job goes on after a kill"""
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "takes_gpu.py").write_text(f"import torch\ntorch.zeros(1, device='{machine.device}')\n")
    (site / "asks_gpu.py").write_text("import torch\ntorch.cuda.is_available()\n")
    script = tmp_path / "imports.py"
    script.write_text(
        f"import runpy, asks_gpu, takes_gpu\nrunpy.run_path({str(TRAIN)!r}, run_name='__main__')\n"
    )
    env = {"PYTHONPATH": str(site)}
    words = [str(script), *machine.words(tmp_path)[1:]]
    with running(machine, tmp_path, "--preload", "auto", env=env, script=words) as job:
        number = job.world()

        def left_out() -> list[str]:
            output = "".join(agent.stderr for agent in job.cluster.agents.values())
            return re.findall(r"standbys do without (\w+): it takes a GPU", output)

        if machine.device == "cuda":
            job.cluster.wait_for(
                lambda: set(left_out()) >= {"takes_gpu"}, "takes_gpu to be left out", START_S
            )
        assert [gpu_files(pid) for pid in job.standbys()] == [[]] * WORLD
        os.kill(job.pids(number)[0], signal.SIGKILL)
        job.world(number)
        seen(f"left out: {', '.join(sorted(set(left_out()))) or 'nothing'}")
        job.finish()


@pytest.mark.parametrize("how", ["stopped", "sleeps"])
def test_hang(machine: Machine, tmp_path: Path, seen: Seen, how: str) -> None:
    """A worker that hangs is named, with --hang-timeout-s 5, and the job goes on"""
    with running(machine, tmp_path, "--hang-timeout-s", "5") as job:
        number, victim, at = job.world(), 1, time.monotonic()
        if how == "stopped":
            os.kill(job.pids(number)[victim], signal.SIGSTOP)
        else:
            job.do(number, victim, "sleep")
        why = job.why(number)
        seen(f"after {time.monotonic() - at:.1f} s: {why.partition(': ')[2] or why}")
        assert re.search(rf"for rank {victim} ", why), why
        assert ("stopped by a signal" in why) == (how == "stopped"), why
        job.world(number)
        job.finish()


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_snapshots(machine: Machine, tmp_path: Path, seen: Seen, kind: str) -> None:
    """After a kill all ranks load one step, bit for bit as it was; with DDP none that others made is lost"""
    log = tmp_path / "log"
    script = [str(SNAPPED), "--into", str(log), "--kind", kind, "--steps", "100000", "--step-s", "0.05"]
    script += ["--device", machine.device]

    def lines(event: str, number: int) -> list[dict[str, Any]]:
        texts = "".join(path.read_text(encoding="utf-8") for path in log.glob("*.jsonl")).splitlines()
        found: list[dict[str, Any]] = [json.loads(text) for text in texts if text.endswith("}")]
        return [one for one in found if (one["event"], one["round"]) == (event, number)]

    def trained(after: int) -> int:
        """Wait for a round of which all ranks have made some steps."""

        def there() -> int:
            number = int(made.group().get("round", 0))
            ranks = [one["rank"] for one in lines("step", number)]
            return number if number > after and all(ranks.count(rank) >= 12 for rank in range(WORLD)) else 0

        return made.wait_for(there, f"a round after {after}", START_S)

    for name in PAIR:
        (tmp_path / name).mkdir()
    with running(machine, tmp_path, "--snapshot-dir", f"{tmp_path}/{{name}}", script=script) as job:
        made = job.cluster
        number, lost = trained(0), []
        for victim in (0, 2):
            (pid,) = {one["pid"] for one in lines("step", number) if one["rank"] == victim}
            os.kill(pid, signal.SIGKILL)
            after = trained(number)
            (loaded,) = {one["step"] for one in lines("loaded", after)}
            by_rank = {one["rank"]: one["digest"] for one in lines("made", number) if one["step"] == loaded}
            found = {one["rank"]: one["digest"] for one in lines("loaded", after)}
            assert found == {**found, **by_rank}, made.report()
            assert kind == "fsdp2" or found.keys() == by_rank.keys() | {victim}, made.report()
            others = [one["step"] for one in lines("step", number) if one["rank"] != victim]
            lost.append(max(others) - loaded)
            number = after
    seen(f"steps lost: {lost}")
    assert kind == "fsdp2" or max(lost) <= 0, lost


def test_kernel(machine: Machine, tmp_path: Path, seen: Seen) -> None:
    """Stacks show the line that waits for a kernel that hangs, and --hang-timeout-s ends the round"""
    with running(machine, tmp_path, "--hang-timeout-s", "10") as job:
        number, victim = job.world(), 2
        job.do(number, victim, "kernel")
        lines = TRAIN.read_text(encoding="utf-8").splitlines()
        here = [f"line {at} in kernel" for at, line in enumerate(lines, 1) if "# in a kernel" in line]

        def shown() -> bool:
            stacks = job.cluster.ask("POST", "/stacks").json().get("workers", [])
            text = "".join(one["text"] or "" for one in stacks if one["rank"] == victim)
            return any(line in text for line in here)

        job.cluster.wait_for(shown, "the stack", START_S)
        why = job.why(number)
        seen(why.partition(": ")[2] or why)
        job.world(number)
        job.finish()


def test_interface(machine: Machine, tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL is bound to the interface that --interface names"""
    if machine.backend != "nccl":
        pytest.skip(f"no NCCL here: {machine.note}")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    with running(replace(machine, environ={"NCCL_NET": "Socket"}), tmp_path, "--interface", "lo") as job:
        job.world()
        job.finish()
        output = "".join(agent.stderr for agent in job.cluster.agents.values())
    using = set(re.findall(r"NCCL INFO (?:Bootstrap|NET/Socket)\s*: Using (?:\[0\])?([^:\s]+):", output))
    seen(f"interfaces: {', '.join(sorted(using))}")
    assert using == {"lo"}
