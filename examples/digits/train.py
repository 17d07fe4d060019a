"""Train a small network on scikit-learn's digits with DDP; a restarted job resumes after its last epoch.

Under hetagent it resumes after its last step, by snapshots in memory (docs/snapshots.md), and one that is told to stop
saves that in the checkpoint (docs/notice.md).

Runs under hetagent or plain torchrun, on any number of nodes with any number of workers each:

    torchrun --standalone --nproc-per-node 4 examples/digits/train.py --checkpoint-dir /tmp/digits
"""

import argparse
import hashlib
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from hetagent import progress, snapshots

HELD_OUT = 360
"""How many of the 1,797 digits are never trained on."""
SPLIT_SEED = 0
"""Fixed, so that every run is measured on the same digits, whatever its --seed."""


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--epochs", type=int, default=20, help="epochs in all, resumed ones included [20]")
    add("--batch-size", type=int, default=128, help="digits per step over all workers, rounded up [128]")
    add("--lr", type=float, default=4e-3, help="learning rate of Adam [0.004]")
    add("--checkpoint-dir", type=Path, help="one directory that every node sees [no checkpoints]")
    add("--seed", type=int, default=0, help="of the initial weights and the order of digits [0]")
    sleep = "do nothing for so long after every step: only to have time to watch, or to kill something [0]"
    add("--step-sleep", type=float, default=0.0, metavar="SECONDS", help=sleep)
    return parser.parse_args()


def digits(device: torch.device) -> tuple[TensorDataset, TensorDataset]:
    """Return the training and the held-out digits: images (N, 64) in 0..1, labels (N,)."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32, device=device) / 16
    y = torch.tensor(labels, device=device)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(SPLIT_SEED)).to(device)
    held_out, train = order[:HELD_OUT], order[HELD_OUT:]
    return TensorDataset(x[train], y[train]), TensorDataset(x[held_out], y[held_out])


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint at once: whenever killed, it leaves the old one or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def load(path: Path | None, device: torch.device) -> dict[str, Any] | None:
    """Return the checkpoint that every rank reads, None where none has one.

    Raises:
        RuntimeError: the ranks do not read the same bytes (say, the directory is not shared).
    """
    data = path.read_bytes() if path and path.exists() else b""
    mine = torch.tensor(list(hashlib.sha256(data).digest()), dtype=torch.uint8, device=device)
    all_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_ranks, mine)
    other = [rank for rank, digest in enumerate(all_ranks) if not torch.equal(digest, all_ranks[0])]
    if other:
        raise RuntimeError(
            f"ranks {other} read another checkpoint at {path} than rank 0 does: "
            "give every node the same --checkpoint-dir on a file system that they share"
        )
    return torch.load(io.BytesIO(data), map_location=device, weights_only=True) if data else None


def share(digits: int, epoch: int, seed: int, seen: int) -> Tensor:
    """Return which digits of an epoch this rank trains on, in order: every `world_size`-th of those that are left.

    Every rank gets as many, so some may get a digit that another one has, too. Without `seen` this is what
    `DistributedSampler` does.

    Args:
        seen: how many of the epoch's digits all ranks have trained on before.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    order = torch.randperm(digits, generator=torch.Generator().manual_seed(seed + epoch))
    left = order[seen:]
    left = torch.cat([left, order[: -len(left) % world_size]])
    return left[rank::world_size]


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    train: TensorDataset,
    batches: tuple[Tensor, ...],
    stepped: Callable[[int], None],
    step_sleep: float,
) -> tuple[float, int]:
    """Train on this rank's share of one epoch, or of what is left of it, until all ranks agree to stop.

    Args:
        stepped: called after each step with the number of those that are left.
        step_sleep: how long to do nothing after every step (seconds).

    Returns:
        the mean loss over all ranks, and how many steps were made.
    """
    model.train()
    images, labels = train.tensors
    total = torch.zeros(2, device=images.device)
    steps = 0
    for batch in batches:
        loss = cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        stepped(len(batches) - steps)
        total += torch.stack([loss.detach() * len(batch), torch.tensor(len(batch), device=loss.device)])
        time.sleep(step_sleep)
        # The ranks hear of it at different moments; one that stopped alone would leave the others in their next step.
        stop = torch.tensor(int(progress.stop_requested()), device=images.device)
        dist.all_reduce(stop, dist.ReduceOp.MAX)
        if stop:
            break
    dist.all_reduce(total)
    return (total[0] / total[1]).item(), steps


@torch.no_grad()
def accuracy(model: nn.Module, held_out: TensorDataset) -> float:
    """Return the share of held-out digits that are read right; every rank reads its part of them."""
    model.eval()
    images, labels = (tensor[dist.get_rank() :: dist.get_world_size()] for tensor in held_out.tensors)
    right: Tensor = (model(images).argmax(dim=1) == labels).sum()
    dist.all_reduce(right)
    return right.item() / len(held_out)


def main() -> None:
    """Train what is left of --epochs and say how well the held-out digits are read."""
    args = parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    rank, world_size = dist.get_rank(), dist.get_world_size()

    def say(line: str) -> None:
        if rank == 0:
            print(line, flush=True)

    torch.manual_seed(args.seed)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=args.lr)
    checkpoint = args.checkpoint_dir and args.checkpoint_dir / "checkpoint.pt"
    # How many epochs are done, how many digits of the next one all ranks have seen, and how many steps were made.
    at = {"epoch": 0, "seen": 0, "step": 0}
    snaps = snapshots.open({"model": network, "optimizer": optimizer, "at": at}, directory=None)
    if snaps.load() is None and (state := load(checkpoint, device)):
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        at.update(state["at"])
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    since = (
        f"resuming after epoch {at['epoch']}, step {at['step']}" if at["step"] else "starting from scratch"
    )
    say(f"world size {world_size}, restart {restart}, {since}")

    model = DistributedDataParallel(network)
    train, held_out = digits(device)
    batch_size = -(-args.batch_size // world_size)

    def keep() -> None:
        if rank == 0 and checkpoint:
            save(checkpoint, {"at": at, "model": network.state_dict(), "optimizer": optimizer.state_dict()})

    def stepped(left: int) -> None:
        seen = at["seen"] + batch_size * world_size
        at.update(epoch=at["epoch"] + (not left), seen=seen if left else 0, step=at["step"] + 1)
        snaps.step(at["step"])

    for epoch in range(at["epoch"] + 1, args.epochs + 1):
        batches = share(len(train), epoch, args.seed, at["seen"]).split(batch_size)
        loss, made = train_epoch(model, optimizer, train, batches, stepped, args.step_sleep)
        keep()
        if made < len(batches):
            why = notice.why if (notice := progress.notice()) else "another rank was told"
            say(f"saved after step {at['step']}, since the workers are about to be stopped: {why}")
            dist.barrier()  # rank 0 has saved
            del model  # before the group: torch 2.13 may hang if DDP goes last with gloo
            dist.destroy_process_group()
            progress.ready_to_stop()
            return
        score = accuracy(network, held_out)
        say(f"epoch {epoch:2d}/{args.epochs}: loss {loss:.4f}, held-out accuracy {score:.3f}")

    say(f"final accuracy {accuracy(network, held_out):.3f} on {len(held_out)} held-out digits")
    del model  # before the group: torch 2.13 may hang if DDP goes last with gloo
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
