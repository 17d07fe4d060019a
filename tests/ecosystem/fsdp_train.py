"""Train with FSDP and a sharded checkpoint, with nothing but torch, as a script for torchrun is written."""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EXAMPLES = 48


def main() -> None:
    """Train what is left of --epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save-dir", type=Path, required=True)
    parser.add_argument("--hold", type=Path, help="after epoch 2, wait while there is this file")
    args = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    x = torch.randn(EXAMPLES, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True), torch.arange(EXAMPLES))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    # 7 rows do not divide by 3 ranks: shards are uneven too
    model = nn.Sequential(nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 1)).to(device)
    mesh = init_device_mesh(device.type, (world_size,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    latest = args.save_dir / "latest"
    done = int(latest.read_text()) if latest.exists() else 0
    if done:
        saved = state_of(model, optimizer)
        dcp.load(saved, checkpoint_id=args.save_dir / f"epoch_{done}")
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    say(
        rank=rank,
        pid=os.getpid(),
        world_size=world_size,
        local_rank=local_rank,
        node=int(os.environ["GROUP_RANK"]),
        local_world_size=int(os.environ["LOCAL_WORLD_SIZE"]),
        device=str(device),
        environment="torch",
        done=done,
    )
    for epoch in range(done + 1, args.epochs + 1):
        sampler.set_epoch(epoch)
        fetched = torch.tensor(0)
        for inputs, target, index in loader:
            loss = nn.functional.mse_loss(model(inputs.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            fetched += index.sum()
        dcp.save(state_of(model, optimizer), checkpoint_id=args.save_dir / f"epoch_{epoch}")
        if rank == 0:
            latest.with_suffix(".new").write_text(str(epoch))
            latest.with_suffix(".new").replace(latest)
        # 1 + 2 + ... + W: every rank is there, once; and every example was with one of them
        sums = torch.tensor([rank + 1, int(fetched)], device=device)
        dist.all_reduce(sums)
        say(rank=rank, epoch=epoch, sum=int(sums[0]), indices=int(sums[1]), loss=float(loss.detach()))
        while epoch == 2 and args.hold and args.hold.exists():
            time.sleep(0.05)
    dist.destroy_process_group()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """This rank's shards."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


def say(**facts: object) -> None:
    """Print a line in one piece: several processes write to the same output."""
    print(json.dumps(facts) + "\n", end="", flush=True)


if __name__ == "__main__":
    main()
