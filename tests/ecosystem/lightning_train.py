"""Train with Lightning's Trainer, as its documentation starts a script under torchrun, but for the list of devices.

The Trainer multiplies its devices by its nodes, and refuses a world of another size; so nodes that are not alike are
told to it as one node with a device for every rank. Of this list a rank takes the device that its LOCAL_RANK names.
"""

import argparse
import json
import os
import time
from pathlib import Path

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

EXAMPLES = 48


class Sum(lightning.LightningModule):
    """Learns to add up its inputs; counts which examples it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.fetched = 0
        self.loss = 0.0

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        inputs, target, index = batch
        loss = nn.functional.mse_loss(self.layer(inputs), target)
        self.fetched += int(index.sum())
        self.loss = float(loss.detach())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Saver(ModelCheckpoint):
    """Saves after every epoch, then says which ranks and examples were in it."""

    def __init__(self, save_dir: Path, hold: Path | None) -> None:
        super().__init__(dirpath=save_dir, save_last=True, every_n_epochs=1, enable_version_counter=False)
        self.hold = hold

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        super().on_train_start(trainer, module)
        say(
            rank=trainer.global_rank,
            pid=os.getpid(),
            world_size=trainer.world_size,
            local_rank=trainer.local_rank,
            node=trainer.node_rank,
            local_world_size=int(os.environ["LOCAL_WORLD_SIZE"]),
            device=str(trainer.strategy.root_device),
            environment=type(getattr(trainer.strategy, "cluster_environment", None)).__name__,
            done=trainer.current_epoch,
        )

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        super().on_train_epoch_end(trainer, module)
        assert isinstance(module, Sum)
        # 1 + 2 + ... + W: every rank is there, once; and every example was with one of them
        own = torch.tensor([trainer.global_rank + 1, module.fetched])
        sums = trainer.strategy.reduce(own, reduce_op="sum")
        module.fetched = 0
        epoch = trainer.current_epoch + 1
        say(rank=trainer.global_rank, epoch=epoch, sum=int(sums[0]), indices=int(sums[1]), loss=module.loss)
        while epoch == 2 and self.hold and self.hold.exists():
            time.sleep(0.05)


def main() -> None:
    """Train what is left of --epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save-dir", type=Path, required=True)
    parser.add_argument("--hold", type=Path, help="after epoch 2, wait while there is this file")
    parser.add_argument(
        "--plain", action="store_true", help="let the Trainer choose its devices: on CPUs, alone"
    )
    args = parser.parse_args()
    if args.plain:
        args.save_dir = args.save_dir / os.environ["RANK"]

    lightning.seed_everything(0, verbose=False)
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    devices = [torch.device(kind, i) for i in range(int(os.environ["WORLD_SIZE"]))]
    strategy = "auto" if args.plain else DDPStrategy(parallel_devices=devices)
    trainer = lightning.Trainer(
        strategy=strategy,
        max_epochs=args.epochs,
        callbacks=[Saver(args.save_dir, args.hold)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    x = torch.randn(EXAMPLES, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True), torch.arange(EXAMPLES))
    last = args.save_dir / "last.ckpt"
    trainer.fit(
        Sum(), DataLoader(data, batch_size=4, shuffle=True), ckpt_path=str(last) if last.exists() else None
    )


def say(**facts: object) -> None:
    """Print a line in one piece: several processes write to the same output."""
    print(json.dumps(facts) + "\n", end="", flush=True)


if __name__ == "__main__":
    main()
