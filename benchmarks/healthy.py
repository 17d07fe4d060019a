"""Jobs that are healthy, though their workers wait for each other: is any of them taken for one that hangs?

    python -m benchmarks.healthy [--each 8] [--hang-timeout-s 6] [--at-a-time 2]

Each kind of job runs so many times with three workers, `--max-restarts 0` and a short `--hang-timeout-s`: a false alarm
fails the job. In half of the runs a thread saves a checkpoint for 3 s in a second process group, of gloo; in half of
those all train over a backend of which nothing is told.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.workload.beside import BESIDE

from benchmarks.tables import Table

WORKLOAD = Path(__file__).parents[1] / "tests" / "support" / "workload"

RUNS = ("", "side", "", "unseen")
"""What is beside the group over which all train, in one run after another (tests/support/workload/beside.py)."""

HEAD = """
import os, random, time
import torch, torch.distributed as dist
from beside import begin_as_told
from hetagent import progress
saving = None
def begin():
    global saving
    saving = begin_as_told(3.0)
    return dist.get_rank(), dist.get_world_size(), torch.ones(1000)
"""

STEPS = """
rank, world, data = begin()
for step in range(60):
    time.sleep(0.02)
    dist.all_reduce(data)
"""

KINDS = {
    "steps in lock-step": STEPS,
    "one worker is ten times slower": STEPS.replace("0.02", "0.15 if rank == 1 else 0.015"),
    "steps of 2 s": STEPS.replace("range(60)", "range(4)").replace("0.02", "2"),
    "steps of uneven length": STEPS.replace("0.02", "random.random() * 0.2"),
    "rank 0 saves a checkpoint for 7 s behind a barrier, and says so": STEPS
    + """
    if step == 30:
        if rank == 0:
            with progress.long(20):
                time.sleep(7)
        dist.barrier()
""",
    "rank 0 validates alone for 3 s": STEPS
    + """
    if step == 30 and rank == 0:
        time.sleep(3)
""",
    "rank 1 starts 6 s later": "time.sleep(6 if os.environ['RANK'] == '1' else 0)\n" + STEPS,
    "rank 1 ends 3 s later": STEPS + "time.sleep(3 if rank == 1 else 0)\n",
    "sub-groups that take turns": """
rank, world, data = begin()
pairs = [dist.new_group([0, 1]), dist.new_group([1, 2])]
for step in range(40):
    for number, members in enumerate(([0, 1], [1, 2])):
        if rank in members:
            time.sleep(0.05)
            dist.all_reduce(data, group=pairs[number])
dist.barrier()
""",
    "collectives that are waited for later": """
rank, world, data = begin()
for step in range(20):
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(10)]
    time.sleep(0.1)
    for work in works:
        work.wait()
""",
    "objects of unlike sizes": """
rank, world, data = begin()
for step in range(30):
    found = [None] * world
    dist.all_gather_object(found, "x" * (rank + 1) * step)
    time.sleep(0.02)
""",
    "sends and receives in a ring": """
rank, world, data = begin()
for step in range(30):
    time.sleep(0.05)
    if rank == 0:
        dist.send(data, 1); dist.recv(data, world - 1)
    else:
        dist.recv(data, rank - 1); dist.send(data, (rank + 1) % world)
dist.barrier()
""",
    "no collectives for 8 s, then one": """
rank, world, data = begin()
dist.all_reduce(data)
time.sleep(8)
dist.all_reduce(data)
""",
    "no process group": "time.sleep(6)\n",
}
"""The scripts, each after `HEAD`."""


def run(script: Path, timeout_s: float, beside: str) -> str:
    """Run a job; what was wrong, or nothing."""
    env = os.environ | {"PYTHONPATH": str(WORKLOAD), BESIDE: beside}
    command = [
        sys.executable,
        "-m",
        "hetagent",
        "--standalone",
        "--gpus",
        "3",
        "--device",
        "cpu",
        "--preload",
        "none",
    ]
    command += ["--max-restarts", "0", "--hang-timeout-s", f"{timeout_s:g}", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    said = [line for line in done.stderr.splitlines() if " waited " in line]
    return (
        ""
        if done.returncode == 0 and not said
        else f"{beside or 'alone'}: exit {done.returncode}: {' '.join(said) or done.stderr[-500:]}"
    )


def main() -> None:
    """Run every kind, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--each", type=int, default=8, help="jobs of each kind (default: 8)")
    parser.add_argument("--hang-timeout-s", type=float, default=6.0, help="(default: 6)")
    parser.add_argument("--at-a-time", type=int, default=2, help="jobs at a time (default: 2)")
    args = parser.parse_args()
    table = Table(
        f"Healthy jobs of three workers, `--hang-timeout-s {args.hang_timeout_s:g}`, half of them with a second group",
        "job",
        "jobs",
        "alarms",
    )
    wrong = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.at_a_time) as pool:
        for number, (kind, body) in enumerate(KINDS.items()):
            script = Path(folder) / f"kind{number}.py"
            end = "if saving is not None:\n    saving.finish()\n"
            end += "if dist.is_initialized():\n    dist.barrier()\n    dist.destroy_process_group()\n"
            script.write_text(HEAD + body + end)
            runs = [RUNS[job % len(RUNS)] for job in range(args.each)]
            jobs = pool.map(run, [script] * args.each, [args.hang_timeout_s] * args.each, runs)
            found = [wrong_with for wrong_with in jobs if wrong_with]
            table.row(kind, args.each, len(found))
            wrong += [f"{kind}: {one}" for one in found]
    table.show()
    if wrong:
        print("\n".join(wrong))
        sys.exit(1)


if __name__ == "__main__":
    main()
