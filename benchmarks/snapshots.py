"""Steps lost by random faults, with snapshots: what is loaded is what was saved, and the run ends as if undisturbed.

    python -m benchmarks.snapshots [--faults 200] [--seed 1] [--kind ddp fsdp2 hsdp torchrun]

Jobs in float64 on nodes with 2 + 1 + 1, 2 + 1 and 3 workers (HSDP: 2 + 1 + 1). In half of the faults the world stays
as it is (a worker, an agent or a server is killed, and comes back), and the model has BatchNorm and dropout, seeded by
step and rank; in the others nodes lose their memory, are drained and evicted, too. Every rank logs a digest of its
state at each step; a state that was loaded has to have that of its step, in the same world. The losses of all steps
are held against those of a run without faults. `torchrun` kills workers of the same script without snapshots, which
writes a file every 100 steps.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster, cluster, wait_for

from benchmarks.floor import Floor
from benchmarks.tables import Table
from benchmarks.torchrun import Torchrun

SCRIPT = str(Path(__file__).parents[1] / "tests" / "support" / "workload" / "snapped.py")
SIZES: Sequence[Mapping[str, int]] = ({"a": 2, "b": 1, "c": 1}, {"a": 2, "b": 1}, {"a": 3})
STEP_S = 0.03
AHEAD = 25
"""How many steps a round makes at least before the next fault."""

WAIT_S = 90.0
ENDLESS = 1_000_000
"""Steps; a job is cancelled when all its faults are done, of which one may take as long as a node takes to leave."""

CHECKPOINT_EVERY = 100
KINDS = ("ddp", "fsdp2", "hsdp", "torchrun")
SAME = ("worker", "agent", "server")
CHANGING = (*SAME, "node", "drain", "leave")
ALONE = " of the only member"
"""Behind what takes a node out while no other is in the round: others that join then may find nothing."""


@dataclass
class Job:
    """What became of one job."""

    faults: Counter[str] = field(default_factory=Counter)
    lost: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    back_s: list[float] = field(default_factory=list)
    compared: int = 0
    wrong: list[str] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)


class Lines:
    """What the workers have logged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.lines: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """All lines by now."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                for line in file:
                    if line.endswith(b"\n"):
                        self.lines.append(json.loads(line))
                        self._read[path] = self._read.get(path, 0) + len(line)
        return self.lines

    def lost(self, before: int, after: int) -> int:
        """How many steps were made twice from one round to a later one, those between them included."""
        began: dict[int, int] = {}
        reached: dict[int, int] = {}
        for line in self.read():
            if before <= line["round"] <= after and line["event"] in ("loaded", "step"):
                into = began if line["event"] == "loaded" else reached
                into[line["round"]] = max(into.get(line["round"], 0), line["step"] or 0)
        lost, at = 0, reached[before]
        for number in sorted(began):
            if number > before:
                lost += max(
                    0, at - began[number]
                )  # a rank may be stopped before it has logged a step that it saved
                at = max(began[number], reached.get(number, 0))
        return lost

    def began(self, number: int) -> float:
        """When a round made its first step (monotonic seconds)."""
        return min(line["at"] for line in self.read() if line["round"] == number and line["event"] == "step")


def words(kind: str, steps: int, folder: Path, *, same: bool) -> list[str]:
    """The script's arguments."""
    return ["--into", str(folder), "--kind", kind, "--steps", str(steps), "--step-s", str(STEP_S)] + (
        ["--same-world"] if same and kind != "hsdp" else []  # its ranks differ in BatchNorm
    )


def losses(lines: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """The loss of each step over all ranks, as the last round has it that made the step with all of them."""
    by_round: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    worlds: dict[int, int] = {}
    for line in lines:
        worlds[line["round"]] = line["world"]
        if line["event"] == "step":
            by_round[line["step"], line["round"]][line["rank"]] = line["loss"]
    found = {}
    for (step, number), ranks in sorted(by_round.items()):
        if len(ranks) == worlds[number]:
            found[step] = sum(ranks[rank] for rank in sorted(ranks))
    return found


def undisturbed(kind: str, nodes: Mapping[str, int], steps: int, *, same: bool) -> dict[int, float]:
    """The losses of a run without faults."""
    with (
        tempfile.TemporaryDirectory(prefix="hetrdzv-steps-") as folder,
        cluster(Path(folder), "--nnodes", str(len(nodes))) as job,
    ):
        for name, slots in nodes.items():
            job.agent(name, slots, script=SCRIPT, args=words(kind, steps, Path(folder) / "log", same=same))
        for name in nodes:
            assert job.agents[name].wait(600) == 0, job.report()
        return losses(Lines(Path(folder) / "log").read())


def under_torchrun(nodes: Mapping[str, int], faults: int, rng: random.Random) -> tuple[Job, int]:
    """What worker kills cost under torchrun, in its better setting; also how many jobs did not go on."""
    found, hung = Job(), 0
    while sum(found.faults.values()) < faults:
        with tempfile.TemporaryDirectory(prefix="hetrdzv-steps-") as name:
            folder = Path(name) / "log"
            script = [SCRIPT, *words("ddp", ENDLESS, folder, same=True)]
            script += ["--checkpoint-every", str(CHECKPOINT_EVERY)]
            with Torchrun(list(nodes.values()), True, Floor(), rng).running(sys.executable, script):
                lines = Lines(folder)
                number = wait_for(partial(newest, lines, 0), "torchrun's first round", WAIT_S)
                while sum(found.faults.values()) < faults:
                    time.sleep(rng.uniform(0, CHECKPOINT_EVERY * STEP_S))
                    alive = {line["pid"] for line in lines.read() if line["round"] == number}
                    at = time.monotonic()
                    os.kill(rng.choice(sorted(alive)), signal.SIGKILL)
                    found.faults["worker"] += 1
                    try:
                        after = wait_for(partial(newest, lines, number), "torchrun's next round", WAIT_S)
                    except TimeoutError:
                        hung += 1
                        break
                    found.lost["worker"].append(lines.lost(number, after))
                    found.back_s.append(lines.began(after) - at)
                    number = after
                    print(f"  torchrun: worker: lost {found.lost['worker'][-1]}, round {number}", flush=True)
    return found, hung


def newest(lines: Lines, above: int) -> int:
    """The newest round above a number in which all ranks have made some steps; 0: there is none."""
    rounds: dict[int, Counter[int]] = defaultdict(Counter)
    worlds: dict[int, int] = {}
    for line in lines.read():
        worlds[line["round"]] = line["world"]
        if line["event"] == "step":
            rounds[line["round"]][line["rank"]] += 1
    for number in sorted(rounds, reverse=True):
        ranks = rounds[number]
        if number > above and len(ranks) == worlds[number] and min(ranks.values()) >= AHEAD:
            return number
    return 0


class Campaign:
    """One job and its faults."""

    def __init__(
        self, job: Cluster, kind: str, nodes: Mapping[str, int], rng: random.Random, *, same: bool
    ) -> None:
        self.job, self.kind, self.rng, self.same = job, kind, rng, same
        self.nodes = dict(nodes)
        self.lines = Lines(job.folder / "log")
        self.found = Job()
        self.snaps = job.folder / "snaps"
        self.snaps.mkdir()

    def start(self, name: str) -> None:
        """Start a node."""
        flags = ("--snapshot-dir", str(self.snaps / name))
        (self.snaps / name).mkdir(exist_ok=True)
        args = words(self.kind, self.steps, self.job.folder / "log", same=self.same)
        self.job.agent(name, self.nodes[name], *flags, script=SCRIPT, args=args)

    def run(self, faults: int) -> None:
        """Do so many faults, let the job end, and check everything."""
        self.steps = ENDLESS
        for name in self.nodes:
            self.start(name)
        number = self.trained(0)
        for _ in range(faults):
            fault = self.rng.choice(SAME if self.same or len(self.nodes) == 1 else CHANGING)
            name, at = self.rng.choice(sorted(self.members())), time.monotonic()
            if fault not in ("worker", "server") and len(self.nodes) > 1 and self.members() == [name]:
                fault += ALONE
            seen = self.do(fault, name, number)
            self.found.faults[fault] += 1
            if seen is not None:
                after = self.trained(seen)
                self.found.lost[fault].append(self.lines.lost(number, after))
                if self.found.lost[fault][-1] > 1 and self.kind == "ddp" and ALONE not in fault:
                    print(self.job.report(), flush=True)  # that should not be
                self.found.back_s.append(self.lines.began(after) - at)
                number = after
                print(
                    f"  {self.kind}: {fault}: lost {self.found.lost[fault][-1]}, round {number}", flush=True
                )
            else:
                time.sleep(AHEAD * STEP_S)
        self.job.post("cancel")
        self.check()

    def trained(self, above: int) -> int:
        """Wait for a round after `above` in which all ranks have made some steps; its number."""

        def found() -> int:
            for name in self.nodes:
                self.job.post(f"nodes/{name}/undrain")  # or one that comes and goes would be kept as a spare
            return newest(self.lines, above)

        return self.job.wait_for(found, f"a round after {above}", WAIT_S)

    def members(self) -> list[str]:
        """The nodes of the newest round."""
        return [member["node_id"] for member in self.job.group()["current_round"]["members"]]

    def do(self, fault: str, name: str, number: int) -> int | None:
        """Bring a fault about on a node; returns after which round another one follows; None: none does."""
        agent = self.job.agents[name]
        match fault.removesuffix(ALONE):
            case "worker":
                pids = sorted({line["pid"] for line in self.lines.read() if line["round"] == number})
                os.kill(self.rng.choice(pids), signal.SIGKILL)
            case "agent" | "node":
                agent.send(signal.SIGKILL)
                agent.wait()
                while fault != "agent" and (self.snaps / name).exists():
                    shutil.rmtree(self.snaps / name, ignore_errors=True)  # its workers may still write
                self.start(name)
            case "server":
                self.job.server.kill()
                self.job.server.start()
                return None
            case "drain" | "leave" as how:
                if how == "drain":
                    self.job.post(f"nodes/{name}/drain")
                else:
                    agent.send(signal.SIGTERM)
                agent.wait()
                if ALONE not in fault:  # else its next agent has what no other node does
                    number = self.trained(number)
                self.start(name)
        return number

    def check(self) -> None:
        """Hold what was loaded against what was saved."""
        began = {
            reason["round"]: reason["data"]["of_round"]
            for reason in (event["reason"] for event in self.job.events())
            if reason["code"] == "began_from_snapshot" and "of_round" in reason["data"]
        }
        saved = {
            (line["round"], line["step"], line["rank"]): (line["world"], line["digest"])
            for line in self.lines.read()
            if line["event"] == "made"
        }
        for line in self.lines.read():
            if line["event"] != "loaded" or line["round"] not in began:
                continue
            ranks = range(line["world"]) if self.kind == "ddp" else [line["rank"]]
            known = [saved.get((began[line["round"]], line["step"], rank), (0, "")) for rank in ranks]
            digests = {digest for world, digest in known if world == line["world"]}
            if digests:  # in another world its sums are in another order
                self.found.compared += 1
                # DDP's ranks differ in their buffers alone, and a killed one begins with those of another.
                if line["digest"] not in digests:
                    self.found.wrong.append(f"round {line['round']} rank {line['rank']} step {line['step']}")
        made = losses(self.lines.read())  # workers may still be about to stop
        alone = undisturbed(self.kind, self.nodes, max(made), same=self.same)
        self.found.apart = [
            abs(loss - alone[step]) / max(abs(alone[step]), 1e-12) for step, loss in sorted(made.items())
        ]


def main() -> None:
    """Run all jobs, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=200, help="in all (default: 200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=KINDS)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    jobs = [
        (kind, nodes, same)
        for kind in args.kind
        if kind != "torchrun"
        for nodes in SIZES
        for same in (True, False)
        if (same or len(nodes) > 1) and (kind != "hsdp" or (same and sum(nodes.values()) % 2 == 0))
    ]
    failed: list[str] = []
    table = Table(
        "Steps lost by faults, with snapshots",
        "",
        "world",
        "faults",
        "lost: median, most",
        "by fault, most",
        "back after (s)",
        "states compared",
        "wrong",
        "losses apart at first",
        "at most",
    )
    for kind, nodes, same in jobs:
        flags = (
            "--nnodes",
            str(len(nodes)) if same else f"1:{len(nodes)}",
            "--max-restarts",
            "100000",
            "--last-call-s",
            "1",
            "--preload",
            "torch",
        )
        row = f"{kind}, {'+'.join(map(str, nodes.values()))}"
        with (
            tempfile.TemporaryDirectory(prefix="hetrdzv-steps-") as folder,
            cluster(Path(folder), *flags) as job,
        ):
            campaign = Campaign(job, kind, nodes, rng, same=same)
            try:
                campaign.run(max(1, args.faults // len(jobs)))
            except (AssertionError, TimeoutError):
                traceback.print_exc()
                failed.append(row)
            found = campaign.found
        lost = sorted(step for steps in found.lost.values() for step in steps)
        most = ", ".join(f"{fault} {max(steps)}" for fault, steps in sorted(found.lost.items()))
        back = sorted(found.back_s)
        middle = (
            (f"{lost[len(lost) // 2]}, {lost[-1]}", most, f"{back[len(back) // 2]:.2f}")
            if lost
            else ("", "", "")
        )
        table.row(
            row,
            "same" if same else "changes",
            sum(found.faults.values()),
            *middle,
            found.compared,
            len(found.wrong),
            f"{next(filter(None, found.apart), 0.0):.0e}",
            f"{max(found.apart, default=0.0):.0e}",
        )
        for wrong in found.wrong:
            print(f"wrong: {row}: {wrong}", flush=True)
    if "torchrun" in args.kind:
        for nodes in SIZES[:2]:
            found, hung = under_torchrun(nodes, max(1, args.faults // 20), rng)
            row = (
                f"torchrun, {'+'.join(map(str, nodes.values()))}, a checkpoint every {CHECKPOINT_EVERY} steps"
            )
            lost, back = sorted(found.lost["worker"]), sorted(found.back_s)
            table.row(
                row,
                "same",
                sum(found.faults.values()),
                f"{lost[len(lost) // 2]}, {lost[-1]}" if lost else "",
                f"worker {lost[-1]}; {hung} did not go on" if lost else f"{hung} did not go on",
                f"{back[len(back) // 2]:.2f}" if back else "",
                "",
                "",
                "",
                "",
            )
    table.note(
        "Losses apart: the relative difference from a run without faults, at the first step that has one and over all "
        "steps. After a restart DDP lays its buckets out anew: sums in another order, which training amplifies."
    )
    table.show()
    if failed:
        sys.exit(f"did not go on: {', '.join(failed)}")


if __name__ == "__main__":
    main()
