"""Snapshots in FSDP2: `torchrun --standalone --nproc-per-node 2 examples/snapshots/with_fsdp2.py`."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss

from hetagent import snapshots

STEPS = 300
BATCH = 24  # over all workers

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
mesh = init_device_mesh("cpu", (world_size,))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

snaps = snapshots.open({"model": model, "optimizer": optimizer})
first = snaps.load() or 0
for step in range(first, STEPS):
    inputs = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))[rank::world_size]
    loss = mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    snaps.step(step + 1)

total = sum(float(parameter.full_tensor().detach().abs().sum()) for parameter in model.parameters())
print(f"rank {rank}: steps {first} to {STEPS}, parameters {total:.4f}", flush=True)
dist.barrier()  # torch 2.13 may abort if a rank leaves while another one gathers, with gloo
dist.destroy_process_group()
