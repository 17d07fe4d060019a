"""Train with DDP, started as HetSeq starts: one command per node, which spawns one process per GPU.

On every node a person types where the processes meet, how many there are, how many of them this node has, and the
global rank of its first one (nodes with 2 GPUs and 1 GPU):

    first$  python train.py --distributed-init-method tcp://first:29501 --distributed-world-size 3 \\
                --distributed-gpus 2 --distributed-rank 0
    second$ python train.py --distributed-init-method tcp://first:29501 --distributed-world-size 3 \\
                --distributed-gpus 1 --distributed-rank 2

The options and what they do are those of HetSeq (github.com/yifding/hetseq); the model is a small regression.
"""

import argparse
import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES = 16
EXAMPLES = 1536


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--distributed-init-method", metavar="URL", help="tcp://HOST:PORT or file:///PATH [one node]")
    visible = max(1, torch.cuda.device_count())
    add(
        "--distributed-world-size", type=int, default=visible, metavar="W", help="GPUs of all nodes [visible]"
    )
    add("--distributed-gpus", type=int, default=4, metavar="G", help="GPUs of this node [4]")
    add("--distributed-rank", type=int, default=0, metavar="R", help="rank of this node's first GPU [0]")
    add("--device-id", "--local_rank", type=int, default=0, help="the GPU of a single process [0]")
    add("--cpu", action="store_true", help="use no GPU, even if there are some")
    add("--max-epoch", type=int, default=10, help="epochs in all, resumed ones included [10]")
    add("--max-sentences", type=int, default=32, help="examples per GPU and step [32]")
    add("--lr", type=float, default=0.02, help="learning rate [0.02]")
    add("--save-dir", type=Path, help="one directory that every node sees [no checkpoints]")
    add("--epoch-sleep", type=float, default=0.0, metavar="SECONDS", help="rest after every epoch [0]")
    return parser.parse_args()


def main() -> None:
    """Start as many processes as this node has GPUs in the job."""
    args = parse_args()
    gpus = torch.cuda.device_count() if not args.cpu else 0
    if args.distributed_init_method is not None:
        assert not gpus or args.distributed_gpus <= gpus, (
            f"--distributed-gpus {args.distributed_gpus}, but this node has {gpus}"
        )
        if args.distributed_gpus > 1:
            spawn(args.distributed_gpus, args.distributed_rank, args)
        else:
            distributed_main(0, args.device_id, args.distributed_rank, args)
    elif args.distributed_world_size > 1:
        assert not gpus or args.distributed_world_size <= gpus, (
            f"--distributed-world-size {args.distributed_world_size}, but this node has {gpus} GPUs: "
            "give --distributed-init-method for several nodes"
        )
        args.distributed_init_method = f"tcp://localhost:{random.randint(10000, 20000)}"
        spawn(args.distributed_world_size, 0, args)
    else:
        train(args.device_id, 0, args)


def spawn(gpus: int, start_rank: int, args: argparse.Namespace) -> None:
    """Run one process per GPU until all have ended; they have the ranks from `start_rank` on."""
    torch.multiprocessing.spawn(distributed_main, args=(0, start_rank, args), nprocs=gpus)


def distributed_main(i: int, first_device: int, start_rank: int, args: argparse.Namespace) -> None:
    """The i-th process of this node: meet the others, train, part.

    Raises:
        ValueError: there are no others.
    """
    if args.distributed_world_size == 1:
        raise ValueError("--distributed-init-method with --distributed-world-size 1: leave it out")
    rank = start_rank + i
    cuda = torch.cuda.is_available() and not args.cpu
    if cuda:
        torch.cuda.set_device(first_device + i)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=args.distributed_init_method,
        world_size=args.distributed_world_size,
        rank=rank,
    )
    train(first_device + i, rank, args)
    dist.destroy_process_group()


def train(device_id: int, rank: int, args: argparse.Namespace) -> None:
    """Train what is left of --max-epoch; with a process group, together with the other ranks."""
    cuda = torch.cuda.is_available() and not args.cpu
    device = torch.device("cuda", device_id) if cuda else torch.device("cpu")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = nn.Linear(FEATURES, 1, bias=False).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=args.lr)
    checkpoint = args.save_dir and args.save_dir / "checkpoint_last.pt"
    done = 0
    if checkpoint and checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["epoch"]
    world_size = args.distributed_world_size
    say(f"rank {rank} of {world_size}: local index {device_id}, device {device}, {done} epochs done before")

    model: nn.Module = network
    if dist.is_initialized():
        model = DistributedDataParallel(network, device_ids=[device_id] if cuda else None)
    data = regression(device)
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank)
    for epoch in range(done + 1, args.max_epoch + 1):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=args.max_sentences, sampler=sampler):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        # 1 + 2 + ... + W: every rank is there, once
        ranks = all_sum(torch.tensor(rank + 1, device=device))
        mean_loss = all_sum(loss.detach()) / world_size
        if rank == 0 and checkpoint:
            save(checkpoint, network, optimizer, epoch)
        say(f"rank {rank}: epoch {epoch}/{args.max_epoch}, sum {ranks:.0f}, loss {mean_loss:.4f}")
        time.sleep(args.epoch_sleep)


def regression(device: torch.device) -> TensorDataset:
    """Return inputs (N, 16) and targets (N, 1), the same on every rank: a linear function with a little noise."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, FEATURES, generator=source)
    weights = torch.randn(FEATURES, 1, generator=source)
    y = x @ weights + 0.1 * torch.randn(EXAMPLES, 1, generator=source)
    return TensorDataset(x.to(device), y.to(device))


def all_sum(tensor: Tensor) -> float:
    """The sum of a number over all ranks."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor.item()


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
