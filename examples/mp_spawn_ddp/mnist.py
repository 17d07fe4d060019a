"""Train with DDP the way of the tutorials: `-n NODES -g GPUS -nr NODE_RANK`, and one process per GPU by mp.spawn.

On two nodes with 2 GPUs each:

    first$  MASTER_ADDR=first MASTER_PORT=8888 python mnist.py -n 2 -g 2 -nr 0
    second$ MASTER_ADDR=first MASTER_PORT=8888 python mnist.py -n 2 -g 2 -nr 1

World size and ranks are GPUS times something, so this is right only where every node has as many GPUs as the others.
Different GPU counts need two more numbers, here for nodes with 2 GPUs and 1 GPU:

    first$  MASTER_ADDR=first MASTER_PORT=8888 python mnist.py -g 2 --world-size 3 --rank-offset 0
    second$ MASTER_ADDR=first MASTER_PORT=8888 python mnist.py -g 1 --world-size 3 --rank-offset 2

The ten digits are 8 by 8 patterns with noise on them, made here: nothing is downloaded.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

IMAGES = 1536
PIXELS = 64


def main() -> None:
    """Read the command line and start one process per GPU of this node."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("-n", "--nodes", type=int, default=1, metavar="N", help="number of nodes [1]")
    add("-g", "--gpus", type=int, default=1, metavar="G", help="GPUs per node [1]")
    add("-nr", "--nr", type=int, default=0, metavar="NODE_RANK", help="which of the nodes this is [0]")
    add("--world-size", type=int, metavar="W", help="GPUs of all nodes [GPUS * NODES]")
    add("--rank-offset", type=int, metavar="R", help="rank of this node's first GPU [NODE_RANK * GPUS]")
    add("--epochs", type=int, default=5, metavar="N", help="epochs in all, resumed ones included [5]")
    add("--batch-size", type=int, default=32, help="images per GPU and step [32]")
    add("--save-dir", type=Path, help="one directory that every node sees [no checkpoints]")
    add("--epoch-sleep", type=float, default=0.0, metavar="SECONDS", help="rest after every epoch [0]")
    args = parser.parse_args()
    if args.world_size is None:
        args.world_size = args.gpus * args.nodes
    if args.rank_offset is None:
        args.rank_offset = args.nr * args.gpus
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "8888")
    mp.spawn(train, nprocs=args.gpus, args=(args,))


def train(gpu: int, args: argparse.Namespace) -> None:
    """Train on one GPU of this node, or on its CPU, until --epochs are done."""
    rank = args.rank_offset + gpu
    cuda = torch.cuda.is_available()
    dist.init_process_group(
        "nccl" if cuda else "gloo", init_method="env://", world_size=args.world_size, rank=rank
    )
    device = torch.device("cuda", gpu) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(gpu)
    torch.set_num_threads(1)
    torch.manual_seed(0)

    network = nn.Sequential(nn.Linear(PIXELS, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.005)
    checkpoint = args.save_dir and args.save_dir / "checkpoint.pt"
    done = 0
    if checkpoint and checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["epoch"]
    say(f"rank {rank} of {args.world_size}: local index {gpu}, device {device}, {done} epochs done before")

    model = DistributedDataParallel(network, device_ids=[gpu] if cuda else None)
    data = digits(device)
    sampler = DistributedSampler(data, num_replicas=args.world_size, rank=rank)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    for epoch in range(done + 1, args.epochs + 1):
        sampler.set_epoch(epoch)
        right = torch.zeros(1, device=device)
        for images, labels in loader:
            scores = model(images)
            loss = nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (scores.argmax(dim=1) == labels).sum()
        # the sum of the ranks + 1 is 1 + 2 + ... + W: every rank is there, once
        total = torch.stack([torch.full_like(right, rank + 1), right])
        dist.all_reduce(total)
        ranks, accuracy = total[0].item(), total[1].item() / len(data)
        if rank == 0 and checkpoint:
            save(checkpoint, network, optimizer, epoch)
        say(f"rank {rank}: epoch {epoch}/{args.epochs}, sum {ranks:.0f}, accuracy {accuracy:.3f}")
        time.sleep(args.epoch_sleep)
    del model  # before the group: torch 2.13 may hang if DDP goes last with gloo
    dist.destroy_process_group()


def digits(device: torch.device) -> TensorDataset:
    """Return images (N, 64) and labels (N,), the same on every rank: one of ten patterns each, with noise."""
    source = torch.Generator().manual_seed(0)
    patterns = torch.rand(10, PIXELS, generator=source)
    labels = torch.randint(10, (IMAGES,), generator=source)
    images = patterns[labels] + 0.3 * torch.randn(IMAGES, PIXELS, generator=source)
    return TensorDataset(images.to(device), labels.to(device))


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    """Replace the checkpoint at once: whenever killed, it leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, temporary)
    temporary.replace(path)


def say(line: str) -> None:
    """Print a line in one piece: several processes write to the same output."""
    print(line + "\n", end="", flush=True)


if __name__ == "__main__":
    main()
