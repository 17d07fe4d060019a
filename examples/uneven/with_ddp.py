"""Uneven batches in DistributedDataParallel: `torchrun --standalone --nproc-per-node 2 examples/uneven/with_ddp.py`."""

import torch
import torch.distributed as dist
from task import Transformer, sequences
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from hetagent import shares, uneven

dist.init_process_group("gloo")
dataset = sequences(300)
model = DistributedDataParallel(Transformer())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

sampler = uneven.UnevenBatchSampler(len(dataset), 32, shares.current(), memory=8)
loader = DataLoader(dataset, batch_sampler=sampler)
for (digits, largest), part in sampler.parts(loader):
    with uneven.accumulate(model, part):
        loss = cross_entropy(model(digits), largest)
        (loss * part.loss_scale).backward()
    if part.last:
        optimizer.step()
        optimizer.zero_grad()

total = sum(float(parameter.detach().abs().sum()) for parameter in model.parameters())
print(f"rank {dist.get_rank()}: parameters {total:.4f}", flush=True)
del model  # before the group: torch 2.13 may hang if DDP goes last with gloo
dist.destroy_process_group()
