"""What the programs beside this file share: their options, the examples, and what each rank says of itself."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

EXAMPLES = 48


def options() -> argparse.Namespace:
    """What a program is told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save-dir", type=Path, required=True)
    parser.add_argument("--hold", type=Path, help="after epoch 2, wait while there is this file")
    parser.add_argument(
        "--plain", action="store_true", help="the framework chooses its devices: on CPUs, alone"
    )
    args = parser.parse_args()
    if args.plain:
        args.save_dir = args.save_dir / os.environ["RANK"]
    return args


def data() -> TensorDataset:
    """Numbers, their sums, and their places."""
    x = torch.randn(EXAMPLES, 8)
    return TensorDataset(x, x.sum(1, keepdim=True), torch.arange(EXAMPLES))


def say_who(
    rank: int,
    world_size: int,
    local_rank: int,
    device: object,
    environment: str,
    done: int,
    node: int | None = None,
) -> None:
    """Say who this rank is, as its framework sees it."""
    say(
        rank=rank,
        pid=os.getpid(),
        world_size=world_size,
        local_rank=local_rank,
        node=int(os.environ["GROUP_RANK"]) if node is None else node,
        local_world_size=int(os.environ["LOCAL_WORLD_SIZE"]),
        device=str(device),
        environment=environment,
        done=done,
    )


def own(rank: int, fetched: int | Tensor) -> Tensor:
    """What all ranks add up: 1 + 2 + ... + W if every rank is there, once, and the examples that each was given."""
    return torch.tensor([rank + 1, int(fetched)])


def end_epoch(rank: int, epoch: int, sums: Tensor, hold: Path | None) -> None:
    """Say what was in an epoch."""
    say(rank=rank, epoch=epoch, sum=int(sums[0]), indices=int(sums[1]))
    while epoch == 2 and hold and hold.exists():
        time.sleep(0.05)


def say(**facts: object) -> None:
    """Print a line in one piece: several processes write to the same output."""
    print(json.dumps(facts) + "\n", end="", flush=True)
