"""What a killed worker costs a training: from the kill to the last rank's next optimizer step, beside torchrun.

    python -m benchmarks.warm [--kills 20] [--torchrun-kills 8] [--early 1,3,5,10] [--nanogpt DIR] [--digits]
        [--frameworks] [--preload MODULES]

Two nodes, 2 + 1 CPU workers, default flags, but that restarts in quick succession are allowed. A worker is killed once
all standbys are ready, which in a job whose faults are minutes apart they are; with --early so many seconds after the
first step of a job, when they are not. torchrun runs with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which it
recovers from few kills. The script is benchmarks/adamw.py (DistributedDataParallel and AdamW); with --nanogpt also
train.py of a checkout of karpathy/nanoGPT, whose lines that name CUDA are changed; with --digits examples/digits; with
--frameworks the programs of tests/ecosystem in their venv (`make test-ecosystem` makes it).
"""

import argparse
import contextlib
import json
import math
import os
import pickle
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.support.cluster import PAIR, Cluster, cluster, wait_for

from benchmarks.floor import Floor
from benchmarks.outcomes import say, table
from benchmarks.torchrun import Torchrun
from hetagent.standby.keeper import PREFIX, SETTLED_S

ROOT = Path(__file__).parents[1]
FIRST_STEP = Path(__file__).with_name("first_step.py")
WORLD = sum(PAIR.values())

KILLED_OFTEN = ("--restart-wait-s", "0")
"""Flags of a job whose workers are killed again and again, in quick succession."""

START_S = 300.0
TORCHRUN_HUNG_S = 60.0
"""A torchrun without a step for so long after a kill is counted as hung, and started anew."""

FRAMEWORKS = {
    "Lightning": "lightning_train.py",
    "Transformers Trainer": "trainer_train.py",
    "Accelerate": "accelerate_train.py",
    "FSDP2 and DCP": "fsdp_train.py",
}

ON_CPUS = {
    "device = f'cuda:{ddp_local_rank}'": "device = 'cpu'",
    "torch.cuda.set_device(device)": "pass",
    "device_ids=[ddp_local_rank]": "device_ids=None",
}
"""What nanoGPT's train.py has to say on CPUs."""

SMALL = (
    "--backend=gloo --device=cpu --dtype=float32 --compile=False --dataset=small --gradient_accumulation_steps=3 "
    "--batch_size=4 --block_size=32 --n_layer=2 --n_head=2 --n_embd=32 --eval_iters=1 --log_interval=1000000"
)
"""Its own settings."""


@dataclass(frozen=True, slots=True)
class Script:
    """What the workers run.

    Attributes:
        words: the script and its arguments.
        folder: where it runs.
        python: the workers' Python.
    """

    words: Sequence[str]
    folder: Path
    python: str = sys.executable

    def under(self, log: Path) -> list[str]:
        """The same, with the first steps noted."""
        return [str(FIRST_STEP), str(log), *self.words]


class Steps:
    """The first steps that processes have made."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.log.touch()
        self.old: set[int] = set()

    def world(self) -> dict[int, tuple[int, float]] | None:
        """Pid and moment of each rank's first step, once all processes that are not old have made it."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        steps = {line["rank"]: (line["pid"], line["at"]) for line in lines if line["pid"] not in self.old}
        return steps if len(steps) == WORLD else None

    def after_kill(self, rng: random.Random, within_s: float) -> float:
        """Kill one of the processes; the seconds until the last of the next ones has made a step.

        Raises:
            TimeoutError: there are none within so many seconds.
        """
        steps = self.world()
        assert steps is not None
        self.old |= {pid for pid, _ in steps.values()}
        at = time.monotonic()
        psutil.Process(rng.choice(sorted(steps.values()))[0]).kill()
        return max(moment for _, moment in wait_for(self.world, "the next steps", within_s).values()) - at


def main() -> None:
    """Measure, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="of each script (default: 20)")
    parser.add_argument("--torchrun-kills", type=int, default=8, help="of each (default: 8)")
    parser.add_argument("--early", default="", help="seconds, with commas between them (default: none)")
    parser.add_argument("--nanogpt", type=Path, help="a checkout")
    parser.add_argument("--digits", action="store_true")
    parser.add_argument("--frameworks", action="store_true")
    parser.add_argument("--preload", default="", help="the agents' HET_PRELOAD (default: their default)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # jobs end with their blocks
    os.environ.update(HET_PRELOAD=args.preload, HF_HUB_OFFLINE="1")
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="hetrdzv-warm-") as name:
        folder = Path(name)
        scripts = {"DDP, AdamW": Script([str(Path(__file__).with_name("adamw.py"))], folder)}
        if args.nanogpt is not None:
            scripts["nanoGPT"] = nanogpt(args.nanogpt, folder / "nanogpt")
        if args.digits:
            words = [
                str(ROOT / "examples" / "digits" / "train.py"),
                "--epochs",
                "1000000",
                "--checkpoint-dir",
            ]
            scripts["examples/digits"] = Script([*words, str(folder / "digits")], folder)
        if args.frameworks:
            for what, script in FRAMEWORKS.items():
                (saved := folder / script).mkdir()
                words = [
                    str(ROOT / "tests" / "ecosystem" / script),
                    "--epochs",
                    "1000000",
                    "--save-dir",
                    str(saved),
                ]
                scripts[what] = Script(words, folder, str(ROOT / ".venv-ecosystem" / "bin" / "python"))
        rows = []
        for what, script in scripts.items():
            ours = warm(folder / f"{what} warm", script, args.kills, rng)
            theirs = torchrun(folder / f"{what} torchrun", script, args.torchrun_kills, rng)
            rows.append([what, figures(ours), figures(theirs)])
        early = []
        for seconds in filter(None, args.early.split(",")):
            took = first_failure(folder / f"early {seconds}", scripts["DDP, AdamW"], float(seconds), rng)
            early.append([f"{seconds} s", f"{took:.2f} s"])
    heading = ["from the kill to the last rank's next optimizer step", "hetagent: median, worst"]
    print(table([*heading, "torchrun, unshared store"], rows), end="\n\n")
    if early:
        print(table(["killed after the first step of a job", "to the next one of the last rank"], early))


def nanogpt(checkout: Path, folder: Path) -> Script:
    """nanoGPT for CPUs, with data of its own: its text is a row of numbers."""
    shutil.copytree(checkout, folder, ignore=shutil.ignore_patterns(".git"))
    source = (folder / "train.py").read_text()
    for theirs, ours in ON_CPUS.items():
        assert theirs in source, theirs
        source = source.replace(theirs, ours)
    (folder / "train.py").write_text(source)
    (folder / "data" / "small").mkdir()
    (folder / "data" / "small" / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 60}))
    for part in ("train", "val"):
        (folder / "data" / "small" / f"{part}.bin").write_bytes(array("H", range(60)).tobytes() * 100)
    return Script([str(folder / "train.py"), *SMALL.split()], folder)


def warm(folder: Path, script: Script, kills: int, rng: random.Random) -> list[float]:
    """Kill workers, each time once all standbys are ready; the seconds of each kill."""
    seconds = []
    with job(folder, script, kills) as (running, steps):
        for kill in range(kills):
            running.wait_for(steps.world, "the first steps", START_S)
            running.wait_for(lambda: quiet(folder), "the end of the imports", START_S)
            running.wait_for(
                lambda: all(len(running.agents[name].standbys()) == count for name, count in PAIR.items()),
                "standbys",
                START_S,
            )
            seconds.append(steps.after_kill(rng, START_S))
            say(f"{folder.name} {kill + 1}: {seconds[-1]:.2f} s")
    return seconds


def first_failure(folder: Path, script: Script, after_s: float, rng: random.Random) -> float:
    """Kill a worker so many seconds after a job's first step."""
    with job(folder, script, 1) as (running, steps):
        running.wait_for(steps.world, "the first steps", START_S)
        time.sleep(after_s)
        seconds = steps.after_kill(rng, START_S)
        say(f"{folder.name}: {seconds:.2f} s")
    return seconds


@contextlib.contextmanager
def job(folder: Path, script: Script, kills: int) -> Iterator[tuple[Cluster, Steps]]:
    """A running job on both nodes."""
    (folder / "tmp").mkdir(parents=True)
    os.environ.update(PYTHON_EXEC=script.python, TMPDIR=str(folder / "tmp"))
    flags = ("--nnodes", str(len(PAIR)), "--max-restarts", str(kills), *KILLED_OFTEN)
    with contextlib.chdir(script.folder), cluster(folder, *flags) as running:
        steps = Steps(folder / "steps.jsonl")
        first, *words = script.under(steps.log)
        for name, slots in PAIR.items():
            running.agent(name, slots, script=first, args=words)
        yield running, steps


def quiet(folder: Path) -> bool:
    """Whether the standbys that are ready have imported all that the workers have."""
    noted_at = max(path.stat().st_mtime for path in folder.glob(f"tmp/{PREFIX}*/*"))
    return time.time() - noted_at > 2 * SETTLED_S + 1


def torchrun(folder: Path, script: Script, kills: int, rng: random.Random) -> list[float]:
    """Kill torchrun's workers; a job that hangs is started anew for the next kill."""
    folder.mkdir()
    peer = Torchrun(list(PAIR.values()), True, Floor(), rng)
    seconds: list[float] = []
    while len(seconds) < kills:
        steps = Steps(folder / f"{len(seconds)}.jsonl")
        with contextlib.chdir(script.folder), peer.running(script.python, script.under(steps.log)):
            wait_for(steps.world, "torchrun's first steps", START_S)
            while len(seconds) < kills:
                time.sleep(2 + rng.random())
                try:
                    seconds.append(steps.after_kill(rng, TORCHRUN_HUNG_S))
                except TimeoutError:
                    seconds.append(math.inf)
                say(f"{folder.name} {len(seconds)}: {seconds[-1]:.2f} s")
                if seconds[-1] == math.inf:
                    break
    return seconds


def figures(seconds: Sequence[float]) -> str:
    """`0.21 s, 0.34 s (of 20)`; what hung is infinite."""
    if not seconds:
        return "-"
    hung = seconds.count(math.inf)
    good = [one for one in seconds if one != math.inf]
    text = f"{statistics.median(good):.2f} s, {max(good):.2f} s" if good else "-"
    return f"{text} (of {len(seconds)}{f', {hung} hung' if hung else ''})"


if __name__ == "__main__":
    main()
