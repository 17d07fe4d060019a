"""A worker for tests and benchmarks: all-reduces in a loop and writes down what world it saw.

Every line of its log (JSON; see tests/worklog.py, which reads it) has the round, rank, world size, restart count,
step, the all-reduce's result and monotonic times in seconds, which all processes of a machine share. It ends when a
file `stop` appears in the log directory (rank 0 looks, the others are told), after `--steps` steps, or in the way
that `--do` asks for. With `--checkpoint-every` it goes on, after a restart, from the last checkpoint; `made` in the
log counts the steps over all restarts.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

STARTED = time.monotonic()

from worklog import CHECKPOINT, LOG, STOP, StepCounter  # noqa: E402

ACTS = ("raise", "exit3", "ignore-term", "grandchild", "loader", "deadlock", "checkpoint")
"""What a worker can be told to do, most of it at step 3: see `heed` and `act`. For `deadlock` it is the last two."""

PAUSE_S = 0.025
"""Rest after a step (seconds): at 0.005 three workers took half a core from what the tests start beside them."""


def main() -> None:
    """Run one worker; see the module's docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=0, help="0: until the file `stop` appears")
    parser.add_argument("--do", default="", help=f"{'|'.join(ACTS)}[@RANK], in restart 0 only")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="steps; 0: never")
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    what, _, whom = args.do.partition("@")
    acts = bool(what) and restart == 0 and rank == int(whom or 0)
    if what == "deadlock":  # takes two
        acts = restart == 0 and rank >= world - 2
    heed(what, acts, args.into)

    import torch
    import torch.distributed as dist

    imported = time.monotonic()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    counter = StepCounter(args.into)
    counter.open(os.getpid())
    log = (args.into / LOG).open("a", buffering=1)
    checkpoint = args.into / CHECKPOINT
    step = made = 0
    if args.checkpoint_every and rank == 0 and checkpoint.exists():
        made = int(checkpoint.read_text())
    while True:
        step += 1
        stop = rank == 0 and ((args.into / STOP).exists() or (args.steps and step > args.steps))
        # the last is what rank 0 alone knows: how many steps were made before this one
        vote = torch.tensor([0.0 if stop else rank + 1.0, float(stop), float(made) if rank == 0 else 0.0])
        dist.all_reduce(vote)
        if vote[1] > 0:
            break
        made = int(vote[2]) + 1
        counter.set(made)
        if args.checkpoint_every and rank == 0 and made % args.checkpoint_every == 0:
            saved = checkpoint.with_suffix(f".{os.getpid()}")
            saved.write_text(str(made))
            saved.replace(checkpoint)
        if step <= 2 or step % 10 == 0:
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
                "sum": float(vote[0]),
            }
            log.write(json.dumps(line) + "\n")
        if what == "exit3" and restart == 0 and step == 3:
            # with gloo's threads alive, torch aborts about one exit in ten, under plain python too
            dist.destroy_process_group()
            if not acts:
                time.sleep(1000)
        if acts and step == 3 and what == "deadlock":
            (args.into / f"deadlocked.{os.getpid()}").touch()
            dist.recv(vote, src=2 * world - 3 - rank)
        elif acts and step == 3:
            act(what)
        time.sleep(PAUSE_S)
    dist.destroy_process_group()


def heed(what: str, acts: bool, into: Path) -> None:
    """Set up how this worker takes SIGTERM."""

    def checkpoint(*_: object) -> None:
        time.sleep(0.5)
        (into / "saved").write_text(str(time.monotonic()))
        sys.exit(0)

    if acts and what == "ignore-term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if acts and what in ("checkpoint", "deadlock"):
        signal.signal(signal.SIGTERM, checkpoint)


class Endless:
    """A data set that takes its time."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> int:
        time.sleep(0.01)
        return index


def act(what: str) -> None:
    """Fail in the way that was asked for."""
    # gloo's thread lets go of the last tensor only after all_reduce has returned; where that falls into the
    # interpreter's end, it cannot take the GIL any more, and the process aborts
    time.sleep(0.1)
    match what:
        case "raise":
            raise ValueError("the tensor of step 3 has no soul")
        case "exit3":
            sys.exit(3)
        case "grandchild":
            os.system("sleep 1000 &")
            os._exit(5)
        case "loader":
            from torch.utils.data import DataLoader

            next(batches := iter(DataLoader(Endless(), batch_size=2, num_workers=2)))
            os._exit(6 if batches else 0)


if __name__ == "__main__":
    main()
