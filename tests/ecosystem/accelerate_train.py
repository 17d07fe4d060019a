"""Train with Hugging Face Accelerate, started without `accelerate launch`; it reads torchrun's environment."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader
from training import data, end_epoch, options, own, say_who


def main() -> None:
    """Train what is left of --epochs."""
    args = options()
    # Without GPUs it has to be told so; else each process takes itself for the only one.
    accelerator = Accelerator() if args.plain else Accelerator(cpu=not torch.cuda.is_available())
    set_seed(0)
    rank, device = accelerator.process_index, accelerator.device
    loader = DataLoader(data(), batch_size=4, shuffle=True)
    network = nn.Linear(8, 1)
    model, optimizer, loader = accelerator.prepare(
        network, torch.optim.SGD(network.parameters(), lr=0.05), loader
    )
    latest = args.save_dir / "latest"
    done = int(latest.read_text()) if latest.exists() else 0
    if done:
        accelerator.load_state(str(args.save_dir / f"epoch_{done}"))
    world_size, local_rank = accelerator.num_processes, accelerator.local_process_index
    say_who(rank, world_size, local_rank, device, accelerator.distributed_type.value, done)
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
        sums = accelerator.reduce(own(rank, fetched).to(device), reduction="sum")
        end_epoch(rank, epoch, sums, args.hold)
    # torch 2.13 with gloo: DDP that outlives its process group may wait for ever for a thread that wants the GIL
    model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)
    accelerator.end_training()


if __name__ == "__main__":
    main()
