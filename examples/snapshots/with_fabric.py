"""Snapshots in Lightning Fabric: `torchrun --standalone --nproc-per-node 2 examples/snapshots/with_fabric.py`."""

import os

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch import nn
from torch.nn.functional import mse_loss

from hetagent import snapshots

STEPS = 300
BATCH = 24  # over all workers

# Fabric takes all nodes for alike: so they are told to it as one, with a device for every rank.
devices = [torch.device("cpu")] * int(os.environ["WORLD_SIZE"])
fabric = Fabric(strategy=DDPStrategy(parallel_devices=devices))
fabric.launch()
fabric.seed_everything(0, verbose=False)
network = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
model, optimizer = fabric.setup(network, torch.optim.AdamW(network.parameters(), lr=1e-2))

snaps = snapshots.open({"model": network, "optimizer": optimizer})  # what Fabric has wrapped
first = snaps.load() or 0
for step in range(first, STEPS):
    inputs = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))
    inputs = inputs[fabric.global_rank :: fabric.world_size]
    loss = mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    fabric.backward(loss)
    optimizer.step()
    snaps.step(step + 1)

total = sum(float(parameter.detach().abs().sum()) for parameter in network.parameters())
print(f"rank {fabric.global_rank}: steps {first} to {STEPS}, parameters {total:.4f}", flush=True)
