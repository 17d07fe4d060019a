"""Snapshots in FSDP2: `torchrun --standalone --nproc-per-node 2 examples/snapshots/with_fsdp2.py`.

It saves by torch.distributed.checkpoint, for scripts that do so already; `snapshots.open` works as in with_ddp.py.
"""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss

from hetagent import snapshots

STEPS = 300
BATCH = 24  # over all workers
SAVE_EVERY = 20  # steps

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
mesh = init_device_mesh("cpu", (world_size,))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def state():
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


reader = snapshots.reader()
first = reader.step or 0
if reader.step is not None:
    saved = state()
    dcp.load(saved, storage_reader=reader)
    set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
for step in range(first, STEPS):
    inputs = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))[rank::world_size]
    loss = mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % SAVE_EVERY == 0 and step + 1 < STEPS:
        dcp.save(state(), storage_writer=snapshots.writer(step + 1))

total = sum(float(parameter.full_tensor().detach().abs().sum()) for parameter in model.parameters())
print(f"rank {rank}: steps {first} to {STEPS}, parameters {total:.4f}", flush=True)
dist.barrier()  # torch 2.13 may abort if a rank leaves while another one gathers, with gloo
dist.destroy_process_group()
