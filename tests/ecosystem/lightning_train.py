"""Train with Lightning's Trainer, as its documentation starts a script under torchrun, but for the list of devices.

The Trainer multiplies its devices by its nodes, and refuses a world of another size; so nodes that are not alike are
told to it as one node with a device for every rank. Of this list a rank takes the device that its LOCAL_RANK names.
"""

import os
from pathlib import Path

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader
from training import data, end_epoch, options, own, say_who


class Sum(lightning.LightningModule):
    """Learns to add up its inputs; counts which examples it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.fetched = 0

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        inputs, target, index = batch
        loss = nn.functional.mse_loss(self.layer(inputs), target)
        self.fetched += int(index.sum())
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
        strategy = trainer.strategy
        environment = type(getattr(strategy, "cluster_environment", None)).__name__
        ranks = (trainer.global_rank, trainer.world_size, trainer.local_rank)
        say_who(*ranks, strategy.root_device, environment, trainer.current_epoch, trainer.node_rank)

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        super().on_train_epoch_end(trainer, module)
        assert isinstance(module, Sum)
        sums = trainer.strategy.reduce(own(trainer.global_rank, module.fetched), reduce_op="sum")
        module.fetched = 0
        end_epoch(trainer.global_rank, trainer.current_epoch + 1, sums, self.hold)


def main() -> None:
    """Train what is left of --epochs."""
    args = options()
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
    last = args.save_dir / "last.ckpt"
    trainer.fit(
        Sum(), DataLoader(data(), batch_size=4, shuffle=True), ckpt_path=str(last) if last.exists() else None
    )


if __name__ == "__main__":
    main()
