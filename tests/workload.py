"""A worker for tests and benchmarks: all-reduces in a loop and writes down what world it saw.

Every line of its log (one file per process, JSON) has the round, rank, world size, restart count, step, the
all-reduce's result and a monotonic time in seconds, which all processes of a machine share. It ends when a file
`stop` appears in the log directory (rank 0 looks, the others are told), after `--steps` steps, or in the way that
`--do` asks for.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

STARTED = time.monotonic()


def main() -> None:
    """Run one worker; see the module's docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=0, help="0: until the file `stop` appears")
    parser.add_argument(
        "--do", default="", help="raise|exit3|ignore-term|grandchild[@RANK], in restart 0 only"
    )
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    what, _, whom = args.do.partition("@")
    acts = bool(what) and restart == 0 and rank == int(whom or 0)
    if acts and what == "ignore-term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    args.into.mkdir(parents=True, exist_ok=True)
    log = (args.into / f"{os.getpid()}.jsonl").open("a", buffering=1)
    step = 0
    while True:
        step += 1
        stop = args.steps and step > args.steps
        if rank == 0 and ((args.into / "stop").exists() or stop):
            vote = torch.tensor([0.0, 1.0])
        else:
            vote = torch.tensor([float(rank + 1), 0.0])
        dist.all_reduce(vote)
        if vote[1] > 0:
            break
        if step <= 2 or step % 50 == 0:
            line = {
                "at": time.monotonic(),
                "started": STARTED,
                "pid": os.getpid(),
                "round": int(os.environ.get("HET_ROUND", "0")),
                "rank": rank,
                "local_rank": int(os.environ["LOCAL_RANK"]),
                "world": world,
                "restart": restart,
                "node": os.environ.get("HET_NODE_ID", ""),
                "step": step,
                "sum": float(vote[0]),
            }
            log.write(json.dumps(line) + "\n")
        if what == "exit3" and restart == 0 and step == 3:
            # with gloo's threads alive, torch aborts about one exit in ten, under plain python too
            dist.destroy_process_group()
            if not acts:
                time.sleep(1000)
        if acts and step == 3:
            act(what)
        time.sleep(0.005)
    dist.destroy_process_group()


def act(what: str) -> None:
    """Fail in the way that was asked for."""
    match what:
        case "raise":
            raise ValueError("the tensor of step 3 has no soul")
        case "exit3":
            # gloo's thread lets go of the last tensor only after all_reduce has returned; where that falls into the
            # interpreter's end, it cannot take the GIL any more, and the process aborts
            time.sleep(0.1)
            sys.exit(3)
        case "grandchild":
            os.system("sleep 1000 &")
            os._exit(5)


if __name__ == "__main__":
    main()
