"""Trains on uneven ranks with DDP or FSDP2, and beside that alone with whole batches: gradients have to be the same.

    python -m tests.support.gradients FOLDER ddp fsdp timed differing with_ddp.py

Four ranks begin an epoch, in the middle of which three others go on, from their checkpoint. The last batch has fewer
samples than ranks. Prints the largest difference of each world. `timed`: three ranks whose shares follow the time that
they need, in the middle of epochs. A script is one of examples/uneven, which three uneven
ranks run, then one alone. All are forks of one process, so that torch is imported once.
"""

import datetime
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch._dynamo  # optimizers import it at their first step: once here instead of in every fork
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from hetagent import shares, uneven
from hetagent.shares import Shares

EXAMPLES = Path(__file__).parents[2] / "examples" / "uneven"
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
TIMEOUT = datetime.timedelta(seconds=60)
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


class Loader:
    """Gives a world's batches, and begins again as a `DataLoader` does."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return ((self._world.inputs[batch], self._world.targets[batch]) for batch in self._world.sampler)


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
        self.difference = 0.0

    def steps(self) -> Iterator[None]:
        """Go on to the end of the epoch; after each step its gradients have been compared."""
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (self.shared, self.alone)]
        whole = uneven.UnevenBatchSampler(SAMPLES, SAMPLES, Shares((1.0,)), seed=3)
        whole.set_epoch(self.sampler.epoch)
        order = next(iter(whole))
        loader = Loader(self)
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
            self.difference = max(self.difference, off)
            assert off < TOLERANCE, off

    def save(self) -> None:
        """Write the checkpoint; all ranks have to call it."""
        model = {name: full(one) for name, one in self.shared.state_dict().items()}
        if dist.get_rank() == 0:
            state = {"sampler": self.sampler.state_dict(), "model": model, "alone": self.alone.state_dict()}
            torch.save(state, self._checkpoint)


def train(kind: str, folder: Path) -> None:
    """An epoch, in two worlds."""

    def begin() -> None:
        world = World(kind, *BEFORE, folder / kind)
        steps = world.steps()
        for _ in range(STEPS_BEFORE):
            next(steps)
        world.save()
        counts = uneven.gathered(sum(world.counts))
        if dist.get_rank() == 0:
            assert sum(counts) == STEPS_BEFORE * BATCH
            print(f"{kind}: {counts} samples, difference {world.difference:.1e}", flush=True)

    def go_on() -> None:
        world = World(kind, *AFTER, folder / kind)
        assert len(list(world.steps())) == 3
        counts = uneven.gathered(sum(world.counts))
        last = uneven.gathered(world.counts[-1])
        if dist.get_rank() == 0:
            assert sum(counts) == SAMPLES - STEPS_BEFORE * BATCH
            assert last == [0, 2, 0]
            print(f"{kind}: {counts} samples, difference {world.difference:.1e}", flush=True)

    run(4, begin, folder / f"{kind}.4")
    run(3, go_on, folder / f"{kind}.3")


def timed(folder: Path) -> None:
    """Epochs in which shares change, with DDP and FSDP2; without shares all ranks would get as much."""

    def follow(kind: str) -> None:
        world = World(kind, (1.0, 1.0, 1.0), [None, 3, None], folder / "none", is_timed=True)
        for _ in range(TIMED_EPOCHS):
            world.counts.clear()
            assert len(list(world.steps())) == 6
            assert sum(uneven.gathered(sum(world.counts))) == SAMPLES
        counts = uneven.gathered(sum(world.counts))
        if dist.get_rank() == 0:
            print(f"timed {kind}: {counts} samples, difference {world.difference:.1e}", flush=True)

    for kind in ("ddp", "fsdp"):
        run(3, lambda kind=kind: follow(kind), folder / f"timed.{kind}")  # type: ignore[misc]


def differing(folder: Path) -> None:
    """Ranks that would train on other batches are told so, all of them."""

    def compare() -> None:
        rank = dist.get_rank()
        right = Shares((4.0, 1.0), rank)
        cases = {
            "weights": uneven.UnevenBatchSampler(8, 4, Shares((1.0, 1.0), 1) if rank == 1 else right),
            "memory": uneven.UnevenBatchSampler(8, 4, right, memory=1 + rank),
            "seed": uneven.UnevenBatchSampler(8, 4, right, seed=rank),
            "global batch": uneven.UnevenBatchSampler(8, 4 - rank, right),
        }
        for what, sampler in cases.items():
            said = refusal(sampler)
            assert said.startswith(f"{what}: ranks [1] and rank 0 differ (rank {rank} has "), said
        said = refusal(uneven.UnevenBatchSampler(8, 4, Shares((1.0, 1.0, 1.0), rank)))
        assert f"rank {rank} of 3, but this is rank {rank} of 2" in said, said
        assert uneven.gathered(rank + 5) == [5, 6]

    run(2, compare, folder / "differing")


def example(name: str, folder: Path) -> None:
    """Run a script as an agent would, with shares, then alone without an agent."""
    sys.path.insert(0, str(EXAMPLES))
    weights = folder / "weights"
    weights.write_text(json.dumps({"round": 1, "weights": [1.0, 0.2, 0.5], "given": True}), encoding="utf-8")
    os.environ[shares.FILE] = str(weights)
    run(3, lambda: runpy.run_path(str(EXAMPLES / name)), None)
    del os.environ[shares.FILE]
    run(1, lambda: runpy.run_path(str(EXAMPLES / name)), None)


def refusal(sampler: uneven.UnevenBatchSampler) -> str:
    """What is said when the first batch is wanted."""
    try:
        next(sampler.parts(sampler))
    except RuntimeError as error:
        return str(error)
    return "nothing"


def run(ranks: int, work: Callable[[], object], store: Path | None) -> None:
    """Fork so many ranks, with the environment of torchrun's, and do something in each.

    Args:
        store: the file over which they meet; None: the work sees to that.

    Raises:
        SystemExit: one of them failed.
    """
    meeting = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )  # a port nobody else can take
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": meeting.port, "TORCHELASTIC_USE_AGENT_STORE": True}
    place |= {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": 0}
    place |= {"TORCHELASTIC_RUN_ID": "gradients", "TORCHELASTIC_RESTART_COUNT": 0}
    children = set()
    for rank in range(ranks):
        if (pid := os.fork()) == 0:
            status = 1
            try:
                torch.set_num_threads(1)
                mine = place | {"RANK": rank, "LOCAL_RANK": rank}
                os.environ.update({name: str(value) for name, value in mine.items()})
                if store is not None:
                    meet = dist.FileStore(str(store), ranks)
                    dist.init_process_group("gloo", store=meet, rank=rank, world_size=ranks, timeout=TIMEOUT)
                work()
                if dist.is_initialized():
                    dist.destroy_process_group()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        children.add(pid)
    while children:
        pid, status = os.wait()
        children.remove(pid)
        if status:  # the others would wait for it
            for other in children:
                os.kill(other, signal.SIGKILL)
            sys.exit(1)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        if name == "differing":
            differing(Path(sys.argv[1]))
        elif name == "timed":
            timed(Path(sys.argv[1]))
        elif name.endswith(".py"):
            example(name, Path(sys.argv[1]))
        else:
            train(name, Path(sys.argv[1]))
