"""Train with DeepSpeed's ZeRO-1, started without its launcher; it reads torchrun's environment."""

import os

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from training import data, end_epoch, options, own, say_who


def main() -> None:
    """Train what is left of --epochs."""
    args = options()
    # For CPUs it would first compile an all-reduce over shared memory, which is for one node, for a minute or more.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()
    rank = dist.get_rank()
    device = torch.device(get_accelerator().device_name(int(os.environ["LOCAL_RANK"])))
    torch.manual_seed(0)
    examples = data()
    sampler = DistributedSampler(examples)
    loader = DataLoader(examples, batch_size=4, sampler=sampler)
    # 7 rows do not divide by 3 ranks: parts of the optimizer's state are uneven too
    network = nn.Sequential(nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 1))
    engine, _, _, _ = deepspeed.initialize(
        model=network,
        optimizer=torch.optim.AdamW(network.parameters(), lr=0.02),
        config={"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}},
    )
    _, saved = engine.load_checkpoint(str(args.save_dir))
    done = saved["epoch"] if saved else 0
    stage = f"ZeRO-{engine.zero_optimization_stage()}"
    say_who(rank, engine.world_size, engine.local_rank, engine.device, stage, done)
    for epoch in range(done + 1, args.epochs + 1):
        sampler.set_epoch(epoch)
        fetched = torch.tensor(0)
        for inputs, target, index in loader:
            loss = nn.functional.mse_loss(engine(inputs.to(device)), target.to(device))
            engine.backward(loss)
            engine.step()
            fetched += index.sum()
        engine.save_checkpoint(str(args.save_dir), client_state={"epoch": epoch})
        sums = own(rank, fetched).to(device)
        dist.all_reduce(sums)
        end_epoch(rank, epoch, sums, args.hold)
    engine.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
