"""Uneven batches in Accelerate: `torchrun --standalone --nproc-per-node 2 examples/uneven/with_accelerate.py`."""

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from task import Transformer, sequences
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from hetagent import shares, uneven

accelerator = Accelerator(cpu=not torch.cuda.is_available())
dataset = sequences(300)
model = Transformer()
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))

sampler = uneven.UnevenBatchSampler(len(dataset), 32, shares.current(), memory=8)
loader = DataLoader(dataset, batch_sampler=sampler)  # not prepared: that would share it out again
for batch, part in sampler.parts(loader):
    digits, largest = send_to_device(batch, accelerator.device)
    with uneven.accumulate(model, part):
        loss = cross_entropy(model(digits), largest)
        accelerator.backward(loss * part.loss_scale)
    if part.last:
        optimizer.step()
        optimizer.zero_grad()

total = sum(float(parameter.detach().abs().sum()) for parameter in model.parameters())
print(f"rank {accelerator.process_index}: parameters {total:.4f}", flush=True)
accelerator.free_memory(model, optimizer)
del model, optimizer  # over gloo a model that outlives its process group may hang (docs/torch.md)
accelerator.end_training()
