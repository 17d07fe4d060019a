"""Train with Horovod, as programs for mpirun do: one process per GPU, and `hvd.init()` finds the others.

With Open MPI a person types (nodes with 2 GPUs and 1 GPU):

    mpirun -np 3 -H first:2,second:1 -bind-to none -map-by slot -x PATH python train.py

Ranks, devices and averaging are as in the distributed examples of Texar (github.com/asyml/texar); the model is a
small regression.
"""

import argparse
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

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
        "--save-dir", type=Path, help="where rank 0 keeps its checkpoint; every node sees it [no checkpoints]"
    )
    add("--epoch-sleep", type=float, default=0.0, metavar="SECONDS", help="rest after every epoch [0]")
    return parser.parse_args()


def main() -> None:
    """Train what is left of --epochs, together with the other ranks."""
    args = parse_args()
    hvd.init()
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        torch.cuda.set_device(hvd.local_rank())
        device = torch.device("cuda", hvd.local_rank())
    torch.manual_seed(hvd.rank())  # unlike on every rank, until rank 0's are broadcast
    model = nn.Linear(FEATURES, 1, bias=False).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)

    checkpoint = args.save_dir and args.save_dir / "checkpoint_last.pt"
    done = 0
    if hvd.rank() == 0 and checkpoint and checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["epoch"]
    done = int(hvd.broadcast(torch.tensor(done), root_rank=0, name="done"))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    say(
        f"rank {hvd.rank()} of {hvd.size()}: local rank {hvd.local_rank()} of {hvd.local_size()}, "
        f"cross rank {hvd.cross_rank()} of {hvd.cross_size()}, device {device}, {done} epochs done before"
    )

    data = regression(device)
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    for epoch in range(done + 1, args.epochs + 1):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=args.batch_size, sampler=sampler):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        # 1 + 2 + ... + W: every rank is there, once
        ranks = hvd.allreduce(torch.tensor(hvd.rank() + 1.0), op=hvd.Sum, name="ranks")
        mean_loss = hvd.allreduce(loss.detach(), name="loss")
        # the optimizers have averaged the same gradients, so all have the same weights
        weights = hvd.allgather(model.weight.detach().cpu(), name="weights")
        apart = float((weights - weights[0]).abs().max())
        if hvd.rank() == 0 and checkpoint:
            save(checkpoint, model, optimizer, epoch)
        say(
            f"rank {hvd.rank()}: epoch {epoch}/{args.epochs}, sum {ranks:.0f}, loss {mean_loss:.4f}, "
            f"weights differ by {apart:g}"
        )
        time.sleep(args.epoch_sleep)
    hvd.shutdown()


def regression(device: torch.device) -> TensorDataset:
    """Return inputs (N, 16) and targets (N, 1), the same on every rank: a linear function with a little noise."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, FEATURES, generator=source)
    weights = torch.randn(FEATURES, 1, generator=source)
    y = x @ weights + 0.1 * torch.randn(EXAMPLES, 1, generator=source)
    return TensorDataset(x.to(device), y.to(device))


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
