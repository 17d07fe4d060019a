"""Jobs on GPUs: what a restart costs and frees, what standbys hold, and who is named when a worker fails or hangs."""

import contextlib
import json
import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hetagent.standby.import_ahead import GPU_FILES
from tests.gpu.machine import START_S, TRAIN, WORLD, Machine, in_use
from tests.support.cluster import PAIR, WORKLOAD, Cluster, cluster

pytestmark = [pytest.mark.gpu, pytest.mark.cold, pytest.mark.timeout(600)]

Seen = Callable[[str], None]
SNAPPED = WORKLOAD.with_name("snapped.py")


class Job:
    """Three ranks on two nodes that train until they are told to finish."""

    def __init__(self, made: Cluster, folder: Path) -> None:
        self.cluster = made
        self._folder = folder

    def ranks(self, number: int) -> dict[int, dict[str, Any]]:
        """What the ranks of a round have noted after their first step."""
        with contextlib.suppress(FileNotFoundError):
            lines = map(json.loads, (self._folder / "notes").read_text(encoding="utf-8").splitlines())
            return {one["rank"]: one for one in lines if one["round"] == number}
        return {}

    def world(self, after: int = 0) -> int:
        """Wait for a round after `after` in which all ranks have made a step."""

        def there() -> int:
            number = int(self.cluster.group().get("round", 0))
            return number if number > after and len(self.ranks(number)) == WORLD else 0

        return self.cluster.wait_for(there, f"a world after round {after}", START_S)

    def why(self, number: int) -> str:
        """Why a round has ended."""

        def ended() -> list[str]:
            told = self.cluster.told("round_ended")
            return [text for text in told if text.startswith(f"round {number} ended")]

        return self.cluster.wait_for(ended, f"the end of round {number}", START_S)[0]

    def output(self) -> str:
        """Of all agents."""
        return "".join(agent.stderr for agent in self.cluster.agents.values())

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
    sockets = {"NCCL_NET": "Socket"} if machine.shared else {}
    if machine.shared and "--interface" not in flags:
        sockets["NCCL_SOCKET_IFNAME"] = "lo"
    with cluster(folder) as made:
        for name in PAIR:
            where = ["--server", made.server.url, "--group", "job", "--node-id", name, "--nnodes", "2"]
            often = ["--max-restarts", "9", "--stop-timeout-s", "5"]
            own = (flag.format(name=name) for flag in flags)
            words = [*machine.slots(name), *where, *often, *own, *(script or machine.words(folder))]
            environ = {"HET_PRELOAD": "", **sockets, **env}
            made.run(name, [sys.executable, "-m", "hetagent.cli.main", *words], environ)
        yield Job(made, folder)


def gpu_files(pid: int) -> list[str]:
    """The devices that a process has open."""
    links = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(descriptor))
    return [link for link in links if link.startswith(GPU_FILES)]


@pytest.mark.parametrize("preload", ["default", "none"])
def test_a_killed_worker_is_named_and_the_job_goes_on(
    machine: Machine, tmp_path: Path, seen: Seen, preload: str
) -> None:
    """Standbys and agents hold no GPU; workers that were killed hold none once the next round runs."""
    with running(machine, tmp_path, *(() if preload == "default" else ("--preload", preload))) as job:
        number, took_s = job.world(), []
        for victim in range(WORLD):
            before = {one["pid"] for one in job.ranks(number).values()}
            if preload == "default":
                standbys = job.cluster.standbys(WORLD, START_S)
                assert [gpu_files(pid) for pid in standbys] == [[]] * WORLD
                assert not in_use() & {*standbys, *(agent.pid for agent in job.cluster.agents.values())}
            at = time.monotonic()
            os.kill(job.ranks(number)[victim]["pid"], signal.SIGKILL)
            after = job.world(number)
            assert not in_use() & before
            assert re.search(rf"rank {victim} .*SIGKILL", job.why(number)), job.why(number)
            took_s.append(max(one["at"] for one in job.ranks(after).values()) - at)
            number = after
        seen(f"{statistics.median(took_s):.2f} s from a kill to the next first step")
        job.finish()


def test_preload_auto_leaves_out_a_module_that_takes_a_gpu(machine: Machine, tmp_path: Path) -> None:
    site, script = tmp_path / "site-packages", tmp_path / "imports.py"
    site.mkdir()
    (site / "takes_gpu.py").write_text(f"import torch\ntorch.zeros(1, device='{machine.device}')\n")
    (site / "asks_gpu.py").write_text("import torch\ntorch.cuda.is_available()\n")
    text = f"import runpy, asks_gpu, takes_gpu\nrunpy.run_path({str(TRAIN)!r}, run_name='__main__')\n"
    script.write_text(text)
    words = [str(script), *machine.words(tmp_path)[1:]]
    env = {"PYTHONPATH": str(site)}
    with running(machine, tmp_path, "--preload", "auto", env=env, script=words) as job:
        number = job.world()
        if not machine.harness:
            told = "standbys do without takes_gpu: it takes a GPU"
            job.cluster.wait_for(lambda: told in job.output(), "takes_gpu to be left out", START_S)
        assert [gpu_files(pid) for pid in job.cluster.standbys(WORLD, START_S)] == [[]] * WORLD
        os.kill(job.ranks(number)[0]["pid"], signal.SIGKILL)
        job.world(number)
        job.finish()


@pytest.mark.parametrize("how", ["stopped", "sleep", "kernel"])
def test_a_worker_that_hangs_is_named_and_the_job_goes_on(
    machine: Machine, tmp_path: Path, seen: Seen, how: str
) -> None:
    """One that waits for a kernel, too; stacks show its line."""
    with running(machine, tmp_path, "--hang-timeout-s", "10") as job:
        number, victim, at = job.world(), 2, time.monotonic()
        if how == "stopped":
            os.kill(job.ranks(number)[victim]["pid"], signal.SIGSTOP)
        else:
            (tmp_path / "do.new").write_text(json.dumps({"round": number, "rank": victim, "what": how}))
            (tmp_path / "do.new").rename(tmp_path / "do")
            lines = TRAIN.read_text(encoding="utf-8").splitlines()
            here = [f"line {at} in {how}" for at, line in enumerate(lines, 1) if f"# in {how}" in line]

            def shown() -> bool:
                stacks = job.cluster.ask("POST", "/stacks").json().get("workers", [])
                text = "".join(one["text"] or "" for one in stacks if one["rank"] == victim)
                return any(line in text for line in here)

            job.cluster.wait_for(shown, "the stack", START_S)
        why = job.why(number)
        seen(f"after {time.monotonic() - at:.1f} s: {why}")
        assert re.search(rf"for rank {victim} ", why), why
        assert ("stopped by a signal" in why) == (how == "stopped"), why
        job.world(number)
        job.finish()


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_after_a_kill_all_ranks_load_one_step(
    machine: Machine, tmp_path: Path, seen: Seen, kind: str
) -> None:
    """Bit for bit as it was; with DDP none that others made is lost."""
    log = tmp_path / "log"
    script = [str(SNAPPED), "--into", str(log), "--kind", kind, "--steps", "100000", "--step-s", "0.05"]
    script += ["--device", machine.device]

    def lines(event: str, number: int) -> list[dict[str, Any]]:
        texts = "".join(path.read_text(encoding="utf-8") for path in log.glob("*.jsonl")).splitlines()
        found: list[dict[str, Any]] = [json.loads(text) for text in texts if text.endswith("}")]
        return [one for one in found if (one["event"], one["round"]) == (event, number)]

    def trained(made: Cluster, after: int) -> int:
        """Wait for a round of which all ranks have made some steps."""

        def there() -> int:
            number = int(made.group().get("round", 0))
            ranks = [one["rank"] for one in lines("step", number)]
            return number if number > after and all(ranks.count(rank) >= 12 for rank in range(WORLD)) else 0

        return made.wait_for(there, f"a round after {after}", START_S)

    for name in PAIR:
        (tmp_path / name).mkdir()
    with running(machine, tmp_path, "--snapshot-dir", f"{tmp_path}/{{name}}", script=script) as job:
        number, lost = trained(job.cluster, 0), []
        for victim in (0, 2):
            (pid,) = {one["pid"] for one in lines("step", number) if one["rank"] == victim}
            os.kill(pid, signal.SIGKILL)
            after = trained(job.cluster, number)
            (loaded,) = {one["step"] for one in lines("loaded", after)}
            by_rank = {one["rank"]: one["digest"] for one in lines("made", number) if one["step"] == loaded}
            found = {one["rank"]: one["digest"] for one in lines("loaded", after)}
            assert found == {**found, **by_rank}, job.cluster.report()
            assert kind == "fsdp2" or found.keys() == by_rank.keys() | {victim}, job.cluster.report()
            lost.append(max(one["step"] for one in lines("step", number) if one["rank"] != victim) - loaded)
            number = after
    seen(f"steps lost: {lost}")
    assert kind == "fsdp2" or max(lost) <= 0, lost


def test_nccl_uses_the_interface_that_is_named(machine: Machine, tmp_path: Path) -> None:
    if machine.harness:
        pytest.skip("no NCCL here: make test-gpu on a machine with a GPU")
    env = {"NCCL_DEBUG": "INFO", "NCCL_NET": "Socket"}
    with running(machine, tmp_path, "--interface", "lo", env=env) as job:
        job.world()
        job.finish()
        output = job.output()
    assert set(re.findall(r"NCCL INFO (?:Bootstrap|NET/Socket)\s*: Using (?:\[0\])?([^:\s]+):", output)) == {
        "lo"
    }
