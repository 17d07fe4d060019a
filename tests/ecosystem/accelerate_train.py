"""Train with Hugging Face Accelerate, started without `accelerate launch`; it reads torchrun's environment."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EXAMPLES = 48


def main() -> None:
    """Train what is left of --epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save-dir", type=Path, required=True)
    parser.add_argument("--hold", type=Path, help="after epoch 2, wait while there is this file")
    parser.add_argument("--plain", action="store_true", help="do not tell it that there is no GPU")
    args = parser.parse_args()
    if args.plain:
        args.save_dir = args.save_dir / os.environ["RANK"]

    # Without GPUs it has to be told so; else each process takes itself for the only one.
    accelerator = Accelerator() if args.plain else Accelerator(cpu=not torch.cuda.is_available())
    set_seed(0)
    x = torch.randn(EXAMPLES, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True), torch.arange(EXAMPLES))
    network = nn.Linear(8, 1)
    model, optimizer, loader = accelerator.prepare(
        network,
        torch.optim.SGD(network.parameters(), lr=0.05),
        DataLoader(data, batch_size=4, shuffle=True),
    )
    latest = args.save_dir / "latest"
    done = int(latest.read_text()) if latest.exists() else 0
    if done:
        accelerator.load_state(str(args.save_dir / f"epoch_{done}"))
    say(
        rank=accelerator.process_index,
        pid=os.getpid(),
        world_size=accelerator.num_processes,
        local_rank=accelerator.local_process_index,
        node=int(os.environ["GROUP_RANK"]),
        local_world_size=int(os.environ["LOCAL_WORLD_SIZE"]),
        device=str(accelerator.device),
        environment=accelerator.distributed_type.value,
        done=done,
    )
    for epoch in range(done + 1, args.epochs + 1):
        fetched = torch.tensor(0)
        for inputs, target, index in loader:
            loss = nn.functional.mse_loss(model(inputs), target)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            fetched += index.sum().cpu()
        accelerator.save_state(str(args.save_dir / f"epoch_{epoch}"))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            latest.with_suffix(".new").write_text(str(epoch))
            latest.with_suffix(".new").replace(latest)
        # 1 + 2 + ... + W: every rank is there, once; and every example was with one of them
        ranks = torch.tensor([accelerator.process_index + 1, int(fetched)], device=accelerator.device)
        sums = accelerator.reduce(ranks, reduction="sum")
        say(
            rank=accelerator.process_index,
            epoch=epoch,
            sum=int(sums[0]),
            indices=int(sums[1]),
            loss=float(loss.detach()),
        )
        while epoch == 2 and args.hold and args.hold.exists():
            time.sleep(0.05)
    # torch 2.13 with gloo: DDP that outlives its process group may wait for ever for a thread that wants the GIL
    model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)
    accelerator.end_training()


def say(**facts: object) -> None:
    """Print a line in one piece: several processes write to the same output."""
    print(json.dumps(facts) + "\n", end="", flush=True)


if __name__ == "__main__":
    main()
