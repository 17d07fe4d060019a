"""Tell two spirals apart with a small network, and go on after the last step when workers, or all of it, start again.

However many workers share the work, every step trains on the same points. Runs under hetagent and torchrun;
docs/snapshots.md explains it piece by piece.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from hetagent import snapshots

POINTS = 2000
BATCH = 100
"""Points per step, over all workers."""
STEPS = POINTS // BATCH
"""Steps per epoch."""


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--epochs", type=int, default=10, help="epochs in all, those before a restart included [10]")
    add("--lr", type=float, default=0.01, help="learning rate [0.01]")
    add("--pause", type=float, default=0.0, metavar="SECONDS", help="wait after every step, to watch it [0]")
    return parser.parse_args()


def spirals(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return points in the plane (POINTS, 2), and the number of the spiral that each belongs to (POINTS,)."""
    random = torch.Generator().manual_seed(0)
    spiral = torch.arange(POINTS) % 2
    turn = torch.rand(POINTS, generator=random).sqrt() * 9
    angle = turn + spiral * torch.pi
    noise = torch.randn(POINTS, 2, generator=random) * 0.02
    points = torch.stack([angle.cos(), angle.sin()], dim=1) * turn[:, None] / 9 + noise
    return points.to(device), spiral.to(device)


def share(step: int, rank: int, world_size: int) -> Tensor:
    """Return which points one worker takes in a step: step and world size say it, so nothing else is saved."""
    epoch, number = divmod(step, STEPS)
    order = torch.randperm(POINTS, generator=torch.Generator().manual_seed(epoch))
    return order[number * BATCH : (number + 1) * BATCH][rank::world_size]


@torch.no_grad()
def accuracy(model: nn.Module, points: Tensor, spiral: Tensor) -> float:
    """Return the share of points that are told right; every worker looks at its part of them."""
    part = slice(dist.get_rank(), None, dist.get_world_size())
    right = (model(points[part]).argmax(dim=1) == spiral[part]).sum()
    dist.all_reduce(right)
    return int(right) / POINTS


def main() -> None:
    """Train what is left of --epochs."""
    args = parse_args()
    last = args.epochs * STEPS

    # Rank, world size and where to meet are in the environment.
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    def say(line: str) -> None:
        if rank == 0:
            print(line, flush=True)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)).to(
        device
    )
    optimizer = torch.optim.Adam(model.parameters())
    snaps = snapshots.open({"model": model, "optimizer": optimizer})
    done = snaps.load() or 0
    for group in optimizer.param_groups:
        group["lr"] = args.lr  # what was just asked for, and not that of the snapshot
    workers = "1 worker" if world_size == 1 else f"{world_size} workers"
    say(f"{workers} (rank 0 is process {os.getpid()}): step {done} of {last}")
    if done >= last:
        say("nothing left to train: ask for more --epochs")

    points, spiral = spirals(device)
    parallel = DistributedDataParallel(model)  # averages the gradients of all workers
    for step in range(done, last):
        mine = share(step, rank, world_size)
        # Shares may differ by a point: with the sum over each, the workers' average is the mean over the batch.
        loss = cross_entropy(parallel(points[mine]), spiral[mine], reduction="sum") * world_size / BATCH
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        snaps.step(step + 1)
        time.sleep(args.pause)
        if (step + 1) % STEPS == 0:
            say(
                f"epoch {(step + 1) // STEPS:2d} of {args.epochs}: {accuracy(model, points, spiral):.1%} right"
            )
    del parallel  # before the group: torch 2.13 may hang if DDP goes last with gloo
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
