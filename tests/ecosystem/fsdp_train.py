"""Train with FSDP and a sharded checkpoint, with nothing but torch, as a script for torchrun is written."""

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler
from training import data, end_epoch, last_epoch, note_epoch, options, own, say_who


def main() -> None:
    """Train what is left of --epochs."""
    args = options()
    local_rank = int(os.environ["LOCAL_RANK"])
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    examples = data()
    sampler = DistributedSampler(examples)
    loader = DataLoader(examples, batch_size=4, sampler=sampler)
    # 7 rows do not divide by 3 ranks: shards are uneven too
    model = nn.Sequential(nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 1)).to(device)
    mesh = init_device_mesh(device.type, (world_size,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    done = last_epoch(args.save_dir)
    if done:
        saved = state_of(model, optimizer)
        dcp.load(saved, checkpoint_id=args.save_dir / f"epoch_{done}")
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    say_who(rank, world_size, local_rank, device, "torch", done)
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
            note_epoch(args.save_dir, epoch)
        sums = own(rank, fetched).to(device)
        dist.all_reduce(sums)
        end_epoch(rank, epoch, sums, args.hold)
    dist.destroy_process_group()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """This rank's shards."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


if __name__ == "__main__":
    main()
