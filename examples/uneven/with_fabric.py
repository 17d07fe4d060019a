"""Uneven batches in Lightning Fabric: `torchrun --standalone --nproc-per-node 2 examples/uneven/with_fabric.py`."""

import os

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from task import Transformer, sequences
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from hetagent import shares, uneven

# Fabric takes all nodes for alike: so they are told to it as one, with a device for every rank.
devices = [torch.device("cpu")] * int(os.environ["WORLD_SIZE"])
fabric = Fabric(strategy=DDPStrategy(parallel_devices=devices))
fabric.launch()
dataset = sequences(300)
model = Transformer()
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))

sampler = uneven.UnevenBatchSampler(len(dataset), 32, shares.current(), memory=8)
loader = fabric.setup_dataloaders(DataLoader(dataset, batch_sampler=sampler), use_distributed_sampler=False)
for (digits, largest), part in sampler.parts(loader):
    with uneven.accumulate(model, part), fabric.no_backward_sync(model, enabled=not part.last):
        loss = cross_entropy(model(digits), largest)
        fabric.backward(loss * part.loss_scale)
    if part.last:
        optimizer.step()
        optimizer.zero_grad()

total = sum(float(parameter.detach().abs().sum()) for parameter in model.parameters())
print(f"rank {fabric.global_rank}: parameters {total:.4f}", flush=True)
