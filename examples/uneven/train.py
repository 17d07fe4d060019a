"""Train a small transformer on unlike workers: each gets the part of every batch that fits its speed.

Runs under hetagent and plain torchrun. On one machine, with workers that are made slower:

    torchrun --standalone --nproc-per-node 3 examples/uneven/train.py --speeds 1,0.25,0.25
    torchrun --standalone --nproc-per-node 3 examples/uneven/train.py --speeds 1,0.25,0.25 --equal    # without shares
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from task import Transformer, sequences
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from hetagent import shares, uneven


def numbers(text: str) -> tuple[float, ...]:
    """Numbers with commas between them."""
    return tuple(float(word) for word in text.split(","))


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--epochs", type=int, default=3, help="epochs in all, those before a restart included [3]")
    add("--samples", type=int, default=2000, help="sequences per epoch [2000]")
    add("--global-batch", type=int, default=96, help="sequences per step, over all workers [96]")
    add("--memory", type=int, help="at most so many sequences at once on a worker [any number]")
    add("--width", type=int, default=64, help="of the model [64]")
    add("--lr", type=float, default=2e-3, help="learning rate of Adam [0.002]")
    add("--checkpoint", type=Path, help="a file that every node sees [no checkpoints]")
    add("--save-every", type=int, default=10, metavar="STEPS", help="steps between two checkpoints [10]")
    add("--losses", type=Path, metavar="FILE", help="rank 0 adds a line of JSON for each step")
    add("--equal", action="store_true", help="give all workers as much, whatever their speed")
    add(
        "--weights",
        type=numbers,
        metavar="A,B,...",
        help="speeds of all ranks, by hand [--weight of the agents, else by the time that ranks need]",
    )
    add(
        "--speeds",
        type=numbers,
        metavar="A,B,...",
        help="make the workers of this node slow: the share of a core that each one takes",
    )
    return parser.parse_args()


WARM_UP = 2
"""Steps that do not count: in the first, optimizers import what they need, and in the second others wait for that."""


class Throttle:
    """Makes a worker slow, as a limit on its CPU time would: it sleeps until it has taken only a share of a core.

    Args:
        speed: that share, up to 1: no sleep.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self.start()

    def start(self) -> None:
        """Take what comes from now on for work."""
        self._began_s, self._worked_s = time.perf_counter(), time.thread_time()

    def rest(self) -> None:
        """Sleep for the work since the last call."""
        until_s = self._began_s + (time.thread_time() - self._worked_s) / self._speed
        time.sleep(max(0.0, until_s - time.perf_counter()))
        self.start()


def save(path: Path, state: dict[str, object]) -> None:
    """Replace the checkpoint in one go."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def main() -> None:
    """Train what is left of --epochs."""
    args = parse_args()
    cuda = torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    throttle = Throttle(args.speeds[local_rank % len(args.speeds)] if args.speeds else 1.0)

    def say(line: str) -> None:
        if rank == 0:
            print(line, flush=True)

    def speeds() -> shares.Shares:
        if args.equal:
            return shares.Shares((1.0,) * world_size, rank)
        return shares.Shares(args.weights, rank) if args.weights else shares.current()

    dataset = sequences(args.samples)
    sampler = uneven.UnevenBatchSampler(
        len(dataset), global_batch=args.global_batch, shares=speeds(), memory=args.memory
    )
    loader = DataLoader(dataset, batch_sampler=sampler)
    network = Transformer(args.width).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=args.lr)
    step = 0
    if args.checkpoint and args.checkpoint.exists():
        state = torch.load(args.checkpoint, map_location=device, weights_only=True)
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        sampler.load_state_dict(state["sampler"])
        step = state["step"]
    model = DistributedDataParallel(network)
    say(f"world size {world_size}, step {step}, weights {sampler.shares.weights}")

    for epoch in range(sampler.epoch, args.epochs):
        sampler.set_epoch(epoch)
        sizes = sampler.shares.batch_sizes(args.global_batch)
        began, first, samples = time.perf_counter(), step, 0
        loss_of_step = torch.zeros((), device=device)
        for (digits, largest), part in sampler.parts(loader):
            with uneven.accumulate(model, part):
                loss = cross_entropy(model(digits.to(device)), largest.to(device)) * part.loss_scale
                loss.backward()
            loss_of_step += loss.detach() / world_size
            if not part.last:
                throttle.rest()
                continue
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step <= first + WARM_UP:
                throttle.start()
                began = time.perf_counter()
            else:
                throttle.rest()
                samples += part.total
            if args.losses:
                dist.all_reduce(loss_of_step)  # a sum of parts of the mean
                if rank == 0:
                    with args.losses.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"step": step, "loss": loss_of_step.item()}) + "\n")
            loss_of_step.zero_()
            if rank == 0 and args.checkpoint and (step % args.save_every == 0 or sampler.epoch > epoch):
                state = {"step": step, "sampler": sampler.state_dict()}
                save(
                    args.checkpoint,
                    {**state, "model": network.state_dict(), "optimizer": optimizer.state_dict()},
                )
        per_s = samples / (time.perf_counter() - began)
        say(f"epoch {epoch}: batches {sizes}, {per_s:.1f} samples/s")
    del model  # before the group: torch 2.13 may hang if DDP goes last with gloo
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
