"""Snapshots in Accelerate: `torchrun --standalone --nproc-per-node 2 examples/snapshots/with_accelerate.py`."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import mse_loss

from hetagent import snapshots

STEPS = 300
BATCH = 24  # over all workers

accelerator = Accelerator(cpu=not torch.cuda.is_available())
rank, world_size = accelerator.process_index, accelerator.num_processes
set_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))

snaps = snapshots.open({"model": model, "optimizer": optimizer})
first = snaps.load() or 0
for step in range(first, STEPS):
    inputs = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))[rank::world_size]
    inputs = inputs.to(accelerator.device)
    loss = mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    snaps.step(step + 1)

total = sum(float(parameter.detach().abs().sum()) for parameter in model.parameters())
print(f"rank {rank}: steps {first} to {STEPS}, parameters {total:.4f}", flush=True)
accelerator.end_training()
