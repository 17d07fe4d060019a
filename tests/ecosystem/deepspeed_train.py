"""Train with DeepSpeed's ZeRO-1, started without its launcher; it reads torchrun's environment."""

import argparse
import json
import os
import time
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EXAMPLES = 48


def main() -> None:
    """Train what is left of --epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save-dir", type=Path, required=True)
    parser.add_argument("--hold", type=Path, help="after epoch 2, wait while there is this file")
    args = parser.parse_args()

    # For CPUs it would first compile an all-reduce over shared memory, which is for one node, for a minute or more.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()
    rank = dist.get_rank()
    device = torch.device(get_accelerator().device_name(int(os.environ["LOCAL_RANK"])))
    torch.manual_seed(0)
    x = torch.randn(EXAMPLES, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True), torch.arange(EXAMPLES))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    # 7 rows do not divide by 3 ranks: parts of the optimizer's state are uneven too
    network = nn.Sequential(nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 1))
    engine, _, _, _ = deepspeed.initialize(
        model=network,
        optimizer=torch.optim.AdamW(network.parameters(), lr=0.02),
        config={"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}},
    )
    _, saved = engine.load_checkpoint(str(args.save_dir))
    done = saved["epoch"] if saved else 0
    say(
        rank=rank,
        pid=os.getpid(),
        world_size=engine.world_size,
        local_rank=engine.local_rank,
        node=int(os.environ["GROUP_RANK"]),
        local_world_size=int(os.environ["LOCAL_WORLD_SIZE"]),
        device=str(engine.device),
        environment=f"ZeRO-{engine.zero_optimization_stage()}",
        done=done,
    )
    for epoch in range(done + 1, args.epochs + 1):
        sampler.set_epoch(epoch)
        fetched = torch.tensor(0)
        for inputs, target, index in loader:
            loss = nn.functional.mse_loss(engine(inputs.to(device)), target.to(device))
            engine.backward(loss)
            engine.step()
            fetched += index.sum()
        engine.save_checkpoint(str(args.save_dir), client_state={"epoch": epoch})
        # 1 + 2 + ... + W: every rank is there, once; and every example was with one of them
        sums = torch.tensor([rank + 1, int(fetched)], device=device)
        dist.all_reduce(sums)
        say(rank=rank, epoch=epoch, sum=int(sums[0]), indices=int(sums[1]), loss=float(loss.detach()))
        while epoch == 2 and args.hold and args.hold.exists():
            time.sleep(0.05)
    engine.destroy()
    dist.destroy_process_group()


def say(**facts: object) -> None:
    """Print a line in one piece: several processes write to the same output."""
    print(json.dumps(facts) + "\n", end="", flush=True)


if __name__ == "__main__":
    main()
