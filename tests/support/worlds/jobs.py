"""A job that trains in float64 with DDP or FSDP2, whose steps do not depend on how many ranks share them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from hetagent import snapshots
from hetagent.snapshots.script import Snapshots

NEEDS_FSDP = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"),
    reason=f"torch {torch.__version__}'s FSDP2 does not run on CPUs: pip install torch==2.13.0",
)

BATCH = 12
"""Samples per step; 1, 2, 3 and 4 ranks share them evenly."""

SAVED = 3
"""Steps before the state is saved."""

LAST = 7
"""Steps in all."""


class Counter(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return inputs


class Job:
    """One rank.

    Args:
        kind: ddp, fsdp, or hsdp: two replicas of shards.
    """

    def __init__(self, kind: str) -> None:
        torch.manual_seed(3)
        # 7 rows divide by no number of ranks; and of the last layer's one row most ranks have nothing
        self.net = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), Counter(), nn.Linear(7, 1)).double()
        self.model: nn.Module = self.net
        world_size = dist.get_world_size()
        if kind == "ddp":
            self.model = DistributedDataParallel(self.net)
        else:
            shape = (2, world_size // 2) if kind == "hsdp" else (world_size,)
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "shards")[-len(shape) :])
            for layer in (self.net[0], self.net[3], self.net):
                fully_shard(layer, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.05)
        self.seen: dict[str, Any] = {"steps": [], "generator": torch.Generator().manual_seed(4).get_state()}

    def train(self, first: int, last: int, snaps: Snapshots | None = None) -> list[float]:
        """The losses of some steps, over all ranks."""
        losses = []
        for step in range(first, last):
            generator = torch.Generator()
            generator.set_state(self.seen["generator"])
            inputs = torch.randn(BATCH, 6, generator=generator, dtype=torch.float64)
            self.seen["generator"] = generator.get_state()
            self.seen["steps"].append(step)
            mine = inputs[dist.get_rank() :: dist.get_world_size()]
            loss = mse_loss(self.model(mine), mine.prod(dim=1, keepdim=True))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total = loss.detach()
            dist.all_reduce(total)
            losses.append(total.item() / dist.get_world_size())
            if snaps is not None:
                snaps.step(step + 1)
        return losses

    def given(self) -> dict[str, Any]:
        """What `snapshots.open` is given."""
        return {"model": self.model, "optimizer": self.optimizer, "seen": self.seen}

    def everything(self) -> dict[str, Any]:
        """All of its state, whole, to compare."""
        found: dict[str, Any] = {"steps": list(self.seen["steps"]), "generator": self.seen["generator"]}
        for name, parameter in self.net.named_parameters():
            found[name] = full(parameter)
            for key, value in self.optimizer.state[parameter].items():
                found[f"{name} {key}"] = full(value)
        found |= {name: full(buffer) for name, buffer in self.net.named_buffers()}
        groups = self.optimizer.param_groups
        return found | {"groups": [{**group, "params": len(group["params"])} for group in groups]}


def full(value: Any) -> Any:
    """The whole of a tensor of which each rank may have a shard."""
    whole = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole.detach().clone() if isinstance(whole, Tensor) else whole


Trained = tuple[dict[str, Any], list[float]]
"""All state after SAVED steps, and the losses of the steps from there on."""


def saves(kind: str, folder: Path) -> Trained:
    """Train, save once, and go on undisturbed."""
    job = Job(kind)
    snaps = snapshots.open(job.given(), directory=folder)
    job.train(0, SAVED, snaps)
    if (
        kind != "hsdp" or dist.get_rank() != dist.get_world_size() - 1
    ):  # as if killed: another has the same shards
        snaps.save_now()
    return job.everything(), job.train(SAVED, LAST)


def loads(kind: str, folder: Path) -> Trained:
    """Go on from what was saved."""
    job = Job(kind)
    step = snapshots.open(job.given(), directory=folder).load()
    assert step == SAVED
    return job.everything(), job.train(SAVED, LAST)


def assert_same(loaded: dict[str, Any], saved: dict[str, Any]) -> None:
    """Bit for bit."""
    assert loaded.keys() == saved.keys()
    for name, value in saved.items():
        same = torch.equal(loaded[name], value) if isinstance(value, Tensor) else loaded[name] == value
        assert same, f"{name}: {loaded[name]}, not {value}"
