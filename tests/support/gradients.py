"""Trains on uneven ranks with DDP or FSDP2, and beside that alone with whole batches: gradients have to be the same.

Four ranks begin an epoch, in the middle of which three others go on, from their checkpoint. The last batch has fewer
samples than ranks.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from hetagent import uneven
from hetagent.shares import Shares

BATCH = 16
SAMPLES = 5 * BATCH + 2
STEPS_BEFORE = 3
BEFORE = ((4.0, 1.0, 1.0, 2.0), [None, 2, 1, 3])
AFTER = ((1.0, 3.0, 0.5), [3, 4, None])
"""Weights and memory of the ranks."""
SLOWER = (1, 4, 4)
"""How much longer than the first one the ranks need for a sample, where they are timed, ..."""
TIMED_EPOCHS = 8
SAMPLE_S = 0.002
"""... which needs so long for it (seconds)."""
TOLERANCE = 1e-12


def data() -> tuple[Tensor, Tensor]:
    """Inputs (SAMPLES, 6) and targets (SAMPLES, 1), in float64, so that any other mean shows."""
    inputs = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return inputs, inputs.prod(dim=1, keepdim=True)


def network() -> nn.Sequential:
    """The same on all ranks; 7 rows divide by no number of ranks here."""
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 1)).double()


def full(tensor: Tensor) -> Tensor:
    """The whole of a tensor of which each rank may have a shard."""
    return getattr(tensor, "full_tensor", lambda: tensor)()


class World:
    """One rank, and beside it a model that trains alone with whole batches.

    Args:
        checkpoint: where training goes on, if it is there, and what `save` writes.
    """

    def __init__(
        self,
        kind: str,
        weights: tuple[float, ...],
        memory: list[int | None],
        checkpoint: Path,
        *,
        is_timed: bool = False,
    ) -> None:
        self.inputs, self.targets = data()
        mine = Shares(weights, dist.get_rank(), given=not is_timed)
        self.sampler = uneven.UnevenBatchSampler(SAMPLES, BATCH, mine, memory=memory, seed=3)
        self.alone, self.shared = network(), network()
        if is_timed:
            sample_s = SAMPLE_S * SLOWER[mine.rank]
            self.shared[1].register_forward_hook(lambda _, inputs, __: time.sleep(sample_s * len(inputs[0])))
        self._checkpoint = checkpoint
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            self.sampler.load_state_dict(saved["sampler"])
            self.shared.load_state_dict(saved["model"])
            self.alone.load_state_dict(saved["alone"])
        if kind == "fsdp":
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for layer in (self.shared[0], self.shared[2], self.shared):
                fully_shard(layer, mesh=mesh)
            self.model: nn.Module = self.shared
        else:
            self.model = DistributedDataParallel(self.shared)
        self.counts: list[int] = []

    def steps(self) -> Iterator[None]:
        """Go on to the end of the epoch; after each step its gradients have been compared."""
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (self.shared, self.alone)]
        whole = uneven.UnevenBatchSampler(SAMPLES, SAMPLES, Shares((1.0,)), seed=3)
        whole.set_epoch(self.sampler.epoch)
        order = next(iter(whole))
        loader = DataLoader(TensorDataset(self.inputs, self.targets), batch_sampler=self.sampler)
        for (inputs, targets), part in self.sampler.parts(loader):
            self.counts.append(part.count)
            with uneven.accumulate(self.model, part):
                (mse_loss(self.model(inputs), targets) * part.loss_scale).backward()
            if part.last:
                batch = order[part.consumed - part.total : part.consumed]
                mse_loss(self.alone(self.inputs[batch]), self.targets[batch]).backward()
                self._compare()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                yield

    def _compare(self) -> None:
        for mine, right in zip(self.shared.parameters(), self.alone.parameters(), strict=True):
            assert mine.grad is not None
            assert right.grad is not None
            assert right.grad.abs().max() > 1e-6
            off = float((full(mine.grad) - right.grad).abs().max())
            assert off < TOLERANCE, off

    def save(self) -> None:
        """Write the checkpoint; all ranks have to call it."""
        model = {name: full(one) for name, one in self.shared.state_dict().items()}
        if dist.get_rank() == 0:
            state = {"sampler": self.sampler.state_dict(), "model": model, "alone": self.alone.state_dict()}
            torch.save(state, self._checkpoint)


def begin(kind: str, checkpoint: Path) -> list[int]:
    """The first steps of an epoch; how many samples each rank has had."""
    world = World(kind, *BEFORE, checkpoint)
    steps = world.steps()
    for _ in range(STEPS_BEFORE):
        next(steps)
    world.save()
    return uneven.gathered(sum(world.counts))


def go_on(kind: str, checkpoint: Path) -> list[int]:
    """The other steps, in another world; how many samples each rank has had."""
    world = World(kind, *AFTER, checkpoint)
    assert len(list(world.steps())) == 3
    assert uneven.gathered(world.counts[-1]) == [0, 2, 0]
    return uneven.gathered(sum(world.counts))


def timed(kind: str, folder: Path) -> list[int]:
    """Epochs in which shares change; how many samples each rank has had in the last: without shares, as many."""
    world = World(kind, (1.0, 1.0, 1.0), [None, 3, None], folder / "none", is_timed=True)
    for _ in range(TIMED_EPOCHS):
        world.counts.clear()
        assert len(list(world.steps())) == 6
        assert sum(uneven.gathered(sum(world.counts))) == SAMPLES
    return uneven.gathered(sum(world.counts))


def differing() -> None:
    """Ranks that would train on other batches are told so, all of them."""
    rank = dist.get_rank()
    right = Shares((4.0, 1.0), rank)
    cases = {
        "weights": uneven.UnevenBatchSampler(8, 4, Shares((1.0, 1.0), 1) if rank == 1 else right),
        "memory": uneven.UnevenBatchSampler(8, 4, right, memory=1 + rank),
        "seed": uneven.UnevenBatchSampler(8, 4, right, seed=rank),
        "global batch": uneven.UnevenBatchSampler(8, 4 - rank, right),
    }
    for what, sampler in cases.items():
        expected = rf"^{what}: ranks \[1\] and rank 0 differ \(rank {rank} has "
        with pytest.raises(RuntimeError, match=expected):
            next(sampler.parts(sampler))
    sampler = uneven.UnevenBatchSampler(8, 4, Shares((1.0, 1.0, 1.0), rank))
    with pytest.raises(RuntimeError, match=f"rank {rank} of 3, but this is rank {rank} of 2"):
        next(sampler.parts(sampler))
    assert uneven.gathered(rank + 5) == [5, 6]
