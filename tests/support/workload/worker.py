"""A worker for tests and benchmarks: all-reduces in a loop and logs the world it sees.

Each line of its log (JSON; worklog.py reads it) holds the round, rank, world size, restart count, step, the result of
the all-reduce, and monotonic times in seconds, which all processes of a machine share. The worker ends when a file
`stop` appears in the log directory (rank 0 looks and tells the others), after `--steps` steps, or as `--do` says. With
`--checkpoint-every` a restarted worker resumes from the last checkpoint; `made` in the log counts steps across all
restarts. With `--notice` rank 0 also saves when the round is about to end, after a step on which all ranks agree, and
all exit.

The all-reduce is torch's, on gloo. With `--light` it is collective.py's, which spares the worker the seconds that torch
takes to import: for tests that are not about torch.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

STARTED = time.monotonic()

from collective import Star  # noqa: E402
from worklog import CHECKPOINT, LOG, STOP, StepCounter  # noqa: E402

ACTS = ("grandchild", "deadlock", "checkpoint")
"""What a worker can be told to do, at step 3, or as `handle_sigterm` says. `deadlock` takes the last two ranks."""

PAUSE_S = 0.025
"""Rest after a step (seconds); at 0.005, three workers took half a core away from the programs under test."""


class Gloo:
    """torch's collectives on the CPU."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.imported = time.monotonic()
        self._torch, self._dist = torch, dist
        torch.set_num_threads(1)
        dist.init_process_group("gloo")

    def all_reduce(self, values: list[float]) -> list[float]:
        """The sums over all ranks."""
        tensor = self._torch.tensor(values)
        self._dist.all_reduce(tensor)
        return [float(value) for value in tensor]

    def compute(self, multiplications: int) -> None:
        """Keep a core busy."""
        matrix = self._torch.ones(256, 256)
        for _ in range(multiplications):
            self._torch.mm(matrix, matrix)

    def close(self) -> None:
        """Disconnect from the others."""
        # torch 2.6 waits for gloo's thread with the GIL held, which that needs to release the last tensor.
        time.sleep(0.1)
        self._dist.destroy_process_group()


def main() -> None:
    """Run one worker; see the module's docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=0, help="0: until the file `stop` appears")
    parser.add_argument("--do", default="", help=f"{'|'.join(ACTS)}[@RANK], in restart 0 only")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="steps; 0: never")
    parser.add_argument(
        "--compute", type=int, default=0, help="matrix multiplications a step, instead of a rest"
    )
    parser.add_argument("--notice", action="store_true", help="save before a planned stop")
    parser.add_argument("--light", action="store_true", help="all-reduce without torch")
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    what, _, whom = args.do.partition("@")
    acts = bool(what) and restart == 0 and rank == int(whom or 0)
    if what == "deadlock":  # takes two
        acts = restart == 0 and rank >= world - 2
    handle_sigterm(what, acts, args.into)

    collective: Star | Gloo
    if args.light:
        imported, collective = time.monotonic(), Star.from_environment()
    else:
        collective = gloo = Gloo()
        imported = gloo.imported
    counter = StepCounter(args.into)
    counter.open(os.getpid())
    log = (args.into / LOG).open("a", buffering=1)
    checkpoint = args.into / CHECKPOINT
    step = made = 0
    if (args.checkpoint_every or args.notice) and rank == 0 and checkpoint.exists():
        made = int(checkpoint.read_text())
    while True:
        step += 1
        stop = rank == 0 and ((args.into / STOP).exists() or (args.steps and step > args.steps))
        # only rank 0 knows how many steps were made before this one
        ours = [0.0 if stop else rank + 1.0, float(stop), float(made) if rank == 0 else 0.0]
        total, stops, made_before, notices = collective.all_reduce(
            [*ours, float(args.notice and requested())]
        )
        if stops > 0:
            break
        made = int(made_before) + 1
        counter.set(made)
        if rank == 0 and (notices > 0 or (args.checkpoint_every and made % args.checkpoint_every == 0)):
            saved = checkpoint.with_suffix(f".{os.getpid()}")
            saved.write_text(str(made))
            saved.replace(checkpoint)
        if step <= 2 or step % 10 == 0 or notices > 0:
            line = {
                "at": time.monotonic(),
                "started": STARTED,
                "imported": imported,
                "pid": os.getpid(),
                "round": int(os.environ.get("HET_ROUND", "0")),
                "rank": rank,
                "local_rank": int(os.environ["LOCAL_RANK"]),
                "world": world,
                "restart": restart,
                "node": os.environ.get("HET_NODE_ID", ""),
                "step": step,
                "made": made,
                "sum": total,
            }
            log.write(json.dumps(line) + "\n")
        if notices > 0:
            ready_to_stop()
            break
        if acts and step == 3 and what == "deadlock":
            (args.into / f"deadlocked.{os.getpid()}").touch()
            wait_in_c()
        elif acts and step == 3 and what == "grandchild":
            os.system("sleep 1000 &")
            os._exit(5)
        if args.compute:
            gloo.compute(args.compute)
        else:
            time.sleep(PAUSE_S)
    collective.close()


def requested() -> bool:
    """Whether the round is about to end; as a program that is not Python would look."""
    path = os.environ.get("HET_NOTICE_FILE", "")
    if path and not os.path.exists(path + ".asked"):
        open(path + ".asked", "w").close()
    return os.path.exists(path)


def ready_to_stop() -> None:
    """Say that this worker may be stopped."""
    with open(os.environ["HET_NOTICE_FILE"] + ".ready", "a") as file:
        file.write(f"{os.getpid()}\n")


def wait_in_c() -> None:
    """Wait for ever where no handler of a signal runs, as in a collective."""
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    for _ in range(2):
        libc.pthread_mutex_lock(mutex)


def handle_sigterm(what: str, acts: bool, into: Path) -> None:
    """Save something before the end by SIGTERM, where `--do` says so."""

    def checkpoint(*_: object) -> None:
        time.sleep(0.5)
        (into / "saved").write_text(str(time.monotonic()))
        sys.exit(0)

    if acts and what in ("checkpoint", "deadlock"):
        signal.signal(signal.SIGTERM, checkpoint)


if __name__ == "__main__":
    main()
