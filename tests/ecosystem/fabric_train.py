"""Train with Lightning Fabric, as its documentation starts a script under torchrun, but for the list of devices.

Fabric multiplies its devices by its nodes, and refuses a world of another size; so nodes that are not alike are told to
it as one node with a device for every rank. Of this list a rank takes the device that its LOCAL_RANK names.
"""

import os

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader
from training import data, end_epoch, options, own, say_who


def main() -> None:
    """Train what is left of --epochs."""
    args = options()
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    devices = [torch.device(kind, i) for i in range(int(os.environ["WORLD_SIZE"]))]
    fabric = Fabric(strategy=DDPStrategy(parallel_devices=devices))
    fabric.launch()
    fabric.seed_everything(0, verbose=False)

    loader = fabric.setup_dataloaders(DataLoader(data(), batch_size=4, shuffle=True))
    model = nn.Linear(8, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
    state = {"model": model, "optimizer": optimizer, "epoch": 0}
    checkpoint = args.save_dir / "fabric.ckpt"
    if checkpoint.exists():
        fabric.load(checkpoint, state)
    rank, environment = fabric.global_rank, type(fabric.strategy.cluster_environment).__name__
    say_who(
        rank,
        fabric.world_size,
        fabric.local_rank,
        fabric.device,
        environment,
        state["epoch"],
        fabric.node_rank,
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
        end_epoch(rank, epoch, fabric.all_reduce(own(rank, fetched), reduce_op="sum"), args.hold)


if __name__ == "__main__":
    main()
