"""Train with DDP, started as fairseq starts: it asks the environment, and where that says nothing, spawns.

Where the processes meet, how many there are and which one this is comes from the first of these that says it:

1. --distributed-init-method, on every node, with the global rank of the node's first GPU; it spawns one process per
   visible GPU:
       first$  python train.py --distributed-init-method tcp://first:29501 --distributed-world-size 3 \\
                   --distributed-rank 0
2. a world size of 1, which is the default with one visible GPU: just this process, whatever the environment says
3. MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK, as torchrun sets them: this is one of them, on GPU RANK % visible
4. Slurm's variables, with --distributed-port
5. nothing: one node, one process per GPU

The rules are those of fairseq's newest source: infer_init_method in fairseq/distributed/utils.py of
github.com/facebookresearch/fairseq at 3d262bb25690e4eb2e7d3c1309b1e9c406ca4b99. The model is a small classifier.
"""

import argparse
import os
import random
import subprocess
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
    add("--distributed-init-method", metavar="URL", help="where to meet [from the environment]")
    add("--distributed-world-size", type=int, metavar="W", help="processes of all nodes [visible GPUs]")
    add("--distributed-rank", type=int, default=0, metavar="R", help="rank of the first process here [0]")
    add(
        "--distributed-port",
        type=int,
        default=-1,
        help="where Slurm's first node listens [not Slurm's way]",
    )
    add("--distributed-no-spawn", action="store_true", help="someone else starts one process per GPU")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    add(
        "--device-id",
        type=int,
        default=local_rank,
        help="the GPU of a process that is not spawned [LOCAL_RANK]",
    )
    add("--cpu-workers", type=int, default=1, metavar="N", help="without a GPU, act as if there were N [1]")
    add("--max-epoch", type=int, default=10, help="epochs in all, resumed ones included [10]")
    add("--batch-size", type=int, default=32, help="examples per process and step [32]")
    add("--save-dir", type=Path, help="one directory that every node sees [no checkpoints]")
    add("--epoch-sleep", type=float, default=0.0, metavar="SECONDS", help="rest after every epoch [0]")
    args = parser.parse_args()
    args.visible = torch.cuda.device_count() or args.cpu_workers
    if args.distributed_world_size is None:
        args.distributed_world_size = args.visible
    return args


def main() -> None:
    """Find out who we are, and be it."""
    args = parse_args()
    if args.distributed_init_method is None:
        infer_init_method(args)
    if args.distributed_init_method is None:
        train(0, 0, args)
    elif args.distributed_no_spawn:
        distributed_main(args.device_id, args.distributed_rank, args)
    else:
        processes = min(args.visible, args.distributed_world_size)
        torch.multiprocessing.spawn(spawned, args=(args.distributed_rank, args), nprocs=processes)


def infer_init_method(args: argparse.Namespace) -> None:
    """Fill in what the environment says: how to meet, the world size, the rank, the device, and who spawns.

    A world size of 1, which is the default where one GPU is visible, means that nobody is asked.
    """
    env = os.environ
    if args.distributed_world_size == 1:
        return
    if all(name in env for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")):
        args.distributed_init_method = "env://"
        args.distributed_world_size = int(env["WORLD_SIZE"])
        args.distributed_rank = int(env["RANK"])
        args.device_id = args.distributed_rank % args.visible
        args.distributed_no_spawn = True
        return
    infer_from_slurm(args)
    if args.distributed_port <= 0:
        assert args.distributed_world_size <= args.visible, (
            f"--distributed-world-size {args.distributed_world_size}, but only {args.visible} visible: "
            "nothing says where to meet other nodes"
        )
        args.distributed_init_method = f"tcp://localhost:{random.randint(10000, 60000)}"


def infer_from_slurm(args: argparse.Namespace) -> None:
    """The same from Slurm's variables, where there are any; without --distributed-port it comes to nothing.

    With one task per node, ranks are multiples of this node's GPUs: right only where all nodes have as many.
    """
    env = os.environ
    nodes = env.get("SLURM_STEP_NODELIST", env.get("SLURM_JOB_NODELIST"))
    if nodes is None:
        return
    try:
        names = subprocess.run(["scontrol", "show", "hostnames", nodes], check=True, stdout=subprocess.PIPE)
    except FileNotFoundError:
        return
    args.distributed_init_method = f"tcp://{names.stdout.decode().split()[0]}:{args.distributed_port}"
    nnodes = int(env["SLURM_NNODES"])
    per_node = env.get("SLURM_NTASKS_PER_NODE")
    tasks = int(per_node) if per_node is not None else int(env["SLURM_NTASKS"]) // nnodes
    if tasks == 1:
        args.distributed_rank = int(env["SLURM_NODEID"]) * args.visible
        args.distributed_world_size = nnodes * args.visible
    else:
        assert tasks == args.distributed_world_size // nnodes, f"{tasks} tasks per node"
        args.distributed_no_spawn = True
        args.distributed_rank = int(env["SLURM_PROCID"])
        args.device_id = int(env["SLURM_LOCALID"])


def spawned(i: int, start_rank: int, args: argparse.Namespace) -> None:
    """The i-th process that this node's first one started."""
    distributed_main(i, start_rank + i, args)


def distributed_main(device_id: int, rank: int, args: argparse.Namespace) -> None:
    """Meet the others, train, part."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(device_id)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=args.distributed_init_method,
        world_size=args.distributed_world_size,
        rank=rank,
    )
    train(device_id, rank, args)
    dist.destroy_process_group()


def train(device_id: int, rank: int, args: argparse.Namespace) -> None:
    """Train what is left of --max-epoch; with a process group, together with the other ranks."""
    device = torch.device("cuda", device_id) if torch.cuda.is_available() else torch.device("cpu")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = nn.Linear(FEATURES, 2).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
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
        model = DistributedDataParallel(network, device_ids=[device_id] if device.type == "cuda" else None)
    data = two_classes(device)
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank)
    for epoch in range(done + 1, args.max_epoch + 1):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=args.batch_size, sampler=sampler):
            loss = nn.functional.cross_entropy(model(x), y)
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


def two_classes(device: torch.device) -> TensorDataset:
    """Return inputs (N, 16) and labels (N,), the same on every rank: the two sides of a plane."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, FEATURES, generator=source)
    labels = (x @ torch.randn(FEATURES, generator=source) > 0).long()
    return TensorDataset(x.to(device), labels.to(device))


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
