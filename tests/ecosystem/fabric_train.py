"""Train with Lightning Fabric, as its documentation starts a script under torchrun, but for the list of devices.

Fabric multiplies its devices by its nodes, and refuses a world of another size; so nodes that are not alike are told to
it as one node with a device for every rank. Of this list a rank takes the device that its LOCAL_RANK names.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EXAMPLES = 48


def main() -> None:
    """Train what is left of --epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save-dir", type=Path, required=True)
    parser.add_argument("--hold", type=Path, help="after epoch 2, wait while there is this file")
    args = parser.parse_args()

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    devices = [torch.device(kind, i) for i in range(int(os.environ["WORLD_SIZE"]))]
    fabric = Fabric(strategy=DDPStrategy(parallel_devices=devices))
    fabric.launch()
    fabric.seed_everything(0, verbose=False)

    x = torch.randn(EXAMPLES, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True), torch.arange(EXAMPLES))
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=4, shuffle=True))
    model = nn.Linear(8, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
    state = {"model": model, "optimizer": optimizer, "epoch": 0}
    checkpoint = args.save_dir / "fabric.ckpt"
    if checkpoint.exists():
        fabric.load(checkpoint, state)
    say(
        rank=fabric.global_rank,
        pid=os.getpid(),
        world_size=fabric.world_size,
        local_rank=fabric.local_rank,
        node=fabric.node_rank,
        local_world_size=int(os.environ["LOCAL_WORLD_SIZE"]),
        device=str(fabric.device),
        environment=type(fabric.strategy.cluster_environment).__name__,
        done=state["epoch"],
    )
    for epoch in range(state["epoch"] + 1, args.epochs + 1):
        fetched = torch.tensor(0)
        for inputs, target, index in loader:
            loss = nn.functional.mse_loss(model(inputs), target)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            fetched += index.sum().cpu()
        state["epoch"] = epoch
        fabric.save(checkpoint.with_suffix(".new"), state)
        if fabric.is_global_zero:
            checkpoint.with_suffix(".new").replace(checkpoint)
        # 1 + 2 + ... + W: every rank is there, once; and every example was with one of them
        sums = fabric.all_reduce(torch.tensor([fabric.global_rank + 1, int(fetched)]), reduce_op="sum")
        say(
            rank=fabric.global_rank,
            epoch=epoch,
            sum=int(sums[0]),
            indices=int(sums[1]),
            loss=float(loss.detach()),
        )
        while epoch == 2 and args.hold and args.hold.exists():
            time.sleep(0.05)


def say(**facts: object) -> None:
    """Print a line in one piece: several processes write to the same output."""
    print(json.dumps(facts) + "\n", end="", flush=True)


if __name__ == "__main__":
    main()
