"""Train with mpi4py, as programs for mpirun do: one process per GPU, and `MPI.COMM_WORLD` is all of them.

With Open MPI a person types, on one node, with ssh to all (nodes with 2 GPUs and 1 GPU):

    mpirun -np 3 -H first:2,second:1 -bind-to none -map-by slot python train.py

The model is a small regression on gradients that the ranks average.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

FEATURES = 16
EXAMPLES = 1536


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--epochs", type=int, default=10, help="epochs in all, resumed ones included [10]")
    add("--batch-size", type=int, default=32, help="examples per process and step [32]")
    add(
        "--save-dir",
        type=Path,
        help="where rank 0 keeps its checkpoint; every node sees it [no checkpoints]",
    )
    add("--epoch-sleep", type=float, default=0.0, metavar="SECONDS", help="rest after every epoch [0]")
    return parser.parse_args()


def main() -> None:
    """Train what is left of --epochs, together with the other ranks."""
    args = parse_args()
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    # Open MPI's word for it; where several nodes are on one machine, ranks of all of them share its memory
    local_rank, local_size = (os.environ[f"OMPI_COMM_WORLD_LOCAL_{what}"] for what in ("RANK", "SIZE"))
    checkpoint = args.save_dir and args.save_dir / "checkpoint_last.npz"
    weights, done = np.zeros(FEATURES), 0
    if rank == 0 and checkpoint and checkpoint.exists():
        with np.load(checkpoint) as saved:
            weights, done = saved["weights"], int(saved["epoch"])
    weights, done = world.bcast((weights, done))
    say(
        f"rank {rank} of {size}: local rank {local_rank} of {local_size}, "
        f"pid {os.getpid()}, {done} epochs done before"
    )

    x, y = regression()
    for epoch in range(done + 1, args.epochs + 1):
        order = np.random.default_rng(epoch).permutation(EXAMPLES)
        step = args.batch_size * size
        for start in range(0, EXAMPLES, step):
            mine = order[start + rank : start + step : size]
            gradient = np.zeros(FEATURES)
            if len(mine):
                gradient = 2 * x[mine].T @ (x[mine] @ weights - y[mine]) / len(mine)
            world.Allreduce(MPI.IN_PLACE, gradient)
            weights = weights - 0.05 * gradient / size
        loss = float(np.mean((x @ weights - y) ** 2))
        # 1 + 2 + ... + W: every rank is there, once
        ranks = world.allreduce(rank + 1)
        # all have applied the same gradients, so all have the same weights
        apart = world.allreduce(float(np.abs(weights - world.bcast(weights)).max()), op=MPI.MAX)
        if rank == 0 and checkpoint:
            save(checkpoint, weights, epoch)
        say(
            f"rank {rank}: epoch {epoch}/{args.epochs}, sum {ranks}, loss {loss:.4f}, weights differ by {apart:g}"
        )
        time.sleep(args.epoch_sleep)


def regression() -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (N, 16) and targets (N,), the same on every rank: a linear function with a little noise."""
    source = np.random.default_rng(0)
    x = source.standard_normal((EXAMPLES, FEATURES))
    y = x @ source.standard_normal(FEATURES) + 0.1 * source.standard_normal(EXAMPLES)
    return x, y


def save(path: Path, weights: np.ndarray, epoch: int) -> None:
    """Replace the checkpoint at once: whenever killed, it leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.npz")
    np.savez(temporary, weights=weights, epoch=epoch)
    temporary.replace(path)


def say(line: str) -> None:
    """Print a line in one piece: several processes write to the same output."""
    print(line + "\n", end="", flush=True)


if __name__ == "__main__":
    main()
