"""Trains in float64 with snapshots, and logs what it saves, what it loads, and its losses: a file for each process.

    snapped.py --into FOLDER --kind ddp|fsdp2|hsdp --steps N [--same-world] [--step-s 0.02] [--checkpoint-every N]
        [--accumulate N] [--scaler] [--slow-from STEP] [--device cpu|cuda]

All ranks together take 12 samples a step, so the losses are the same in any world, up to the order of sums. With
--same-world the model has BatchNorm and dropout, whose results depend on the world. With hsdp an even number of ranks
has all shards twice. With --checkpoint-every rank 0 saves a file in FOLDER instead, as scripts do that know nothing of
snapshots (DDP only). With --accumulate the optimizer makes a step only after every N; with --scaler a GradScaler leaves
out every third one. From STEP on steps are long, and each time another rank is slow. Ranks that share a GPU count as
hosts of their own, or NCCL refuses them.
"""

import argparse
import contextlib
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from hetagent import snapshots

SLOW_S = 0.2, 2.0
"""How long steps are then for most ranks, and for one of them (seconds)."""

GLOBAL_BATCH = 12
SAMPLES = 240


class Sampler:
    """The samples of each step, by a permutation of its own for each epoch."""

    def __init__(self) -> None:
        self.consumed = 0

    def batch(self) -> Tensor:
        """The samples of the next step, of all ranks."""
        epoch, at = divmod(self.consumed, SAMPLES)
        self.consumed += GLOBAL_BATCH
        return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))[at : at + GLOBAL_BATCH]

    def state_dict(self) -> dict[str, Any]:
        """What it needs to go on."""
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there."""
        self.consumed = state["consumed"]


class Random:
    """torch's random numbers."""

    def state_dict(self) -> dict[str, Any]:
        """Where they are."""
        return {"cpu": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there."""
        torch.set_rng_state(state["cpu"])


def counted(path: Path, rank: int) -> int:
    """The number of this round, of which torchrun's restart counts tell nothing: they differ between nodes."""
    number = torch.zeros(1)
    if rank == 0:
        number += int(path.read_text()) + 1 if path.exists() else 1
        path.write_text(str(int(number)))
    dist.broadcast(number, 0)
    return int(number)


class Checkpoints:
    """What a script does without snapshots: a file that is written now and then."""

    def __init__(self, path: Path, state: dict[str, Any], every: int) -> None:
        self._path, self._state, self._every = path, state, every

    def load(self) -> int | None:
        """The step of the file; None: there is none."""
        if not self._path.exists():
            return None
        found = torch.load(self._path, weights_only=True)
        for name, value in self._state.items():
            value.load_state_dict(found[name])
        return int(found["step"])

    def step(self, step: int) -> None:
        """This step was made."""
        if self._every and step % self._every == 0:
            values = {name: value.state_dict() for name, value in self._state.items()}
            torch.save({**values, "step": step}, self._path.with_suffix(".new"))
            self._path.with_suffix(".new").rename(self._path)


def made(same_world: bool) -> nn.Module:
    """The model."""
    extra: list[nn.Module] = [nn.BatchNorm1d(32), nn.Dropout(0.2)] if same_world else []
    return nn.Sequential(nn.Linear(8, 32), *extra, nn.ReLU(), nn.Linear(32, 31), nn.ReLU(), nn.Linear(31, 2))


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of this rank's parameters, buffers and optimizer state."""
    states = (state[key] for state in optimizer.state.values() for key in sorted(state))
    tensors = [
        *model.parameters(),
        *model.buffers(),
        *(value for value in states if isinstance(value, Tensor)),
    ]
    found = hashlib.sha256()
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        # Into pinned memory: while a script waits in a copy to other memory, CUDA lets no thread of its copy either.
        host = torch.empty_like(local, device="cpu", pin_memory=local.is_cuda).copy_(local, non_blocking=True)
        if local.is_cuda:
            torch.cuda.current_stream().record_event().synchronize()
        found.update(host.detach().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()[:16]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--kind", choices=("ddp", "fsdp2", "hsdp"), default="ddp")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--same-world", action="store_true")
    parser.add_argument("--checkpoint-every", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--slow-from", type=int, default=1 << 30)
    parser.add_argument("--scaler", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    args.into.mkdir(parents=True, exist_ok=True)
    torch.set_default_dtype(torch.float64)
    device = torch.device(args.device)
    if args.device == "cuda":
        os.environ["NCCL_HOSTID"] = f"host-{os.environ['RANK']}"
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    number = int(os.environ.get("HET_ROUND") or counted(args.into / "rounds", rank))
    who = {"round": number, "rank": rank, "world": world, "pid": os.getpid()}
    log = (args.into / f"{os.getpid()}.jsonl").open("a", buffering=1)

    def note(**facts: Any) -> None:
        log.write(json.dumps({**who, **facts, "at": time.monotonic()}) + "\n")

    torch.manual_seed(1)
    data = torch.randn(SAMPLES, 8).to(device)
    model = made(args.same_world).to(device)
    if args.kind != "ddp":
        copies = 2 if args.kind == "hsdp" and world % 2 == 0 else 1
        shape = (copies, world // copies) if copies > 1 else (world,)
        mesh = dist.init_device_mesh(args.device, shape, mesh_dim_names=("copies", "shards")[-len(shape) :])
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        trained = model
    else:
        trained = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=0.01)
    torch.manual_seed(100 + rank)
    sampler = Sampler()
    scaler = torch.amp.GradScaler(args.device, init_scale=2.0**20, enabled=args.scaler)
    state = {"model": trained, "optimizer": optimizer, "sampler": sampler, "scaler": scaler}
    snaps = (
        Checkpoints(args.into / "checkpoint.pt", state, args.checkpoint_every if rank == 0 else 0)
        if args.checkpoint_every
        else snapshots.open(state, per_rank={"random": Random()})
    )
    first = snaps.load()
    note(event="loaded", step=first, digest=digest(model, optimizer) if first is not None else "")
    share = GLOBAL_BATCH // world
    for step in range(first or 0, args.steps):
        rest_s = args.step_s if step < args.slow_from else SLOW_S[step % world == rank]
        torch.manual_seed(1000 * step + rank)  # as docs/snapshots.md advises
        samples = data[sampler.batch()[rank * share : (rank + 1) * share]]
        steps_now = (step + 1) % args.accumulate == 0
        with contextlib.nullcontext() if steps_now else trained.no_sync():
            loss = (trained(samples) - samples[:, :2]).square().mean()
            overflows = float("inf") if args.scaler and step % 3 == 0 else 1.0
            scaler.scale(loss * overflows / args.accumulate).backward()
        time.sleep(rest_s / 2)  # where whoever lives can still end the step, and the killed cannot
        if steps_now:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        made_digest = digest(model, optimizer)
        note(
            event="made", step=step + 1, digest=made_digest
        )  # a snapshot may be the last that is heard of it
        snaps.step(step + 1)
        note(event="step", step=step + 1, digest=made_digest, loss=loss.item() / world)
        time.sleep(rest_s / 2)
    del trained
    dist.barrier()


if __name__ == "__main__":
    main()
