"""What snapshots on disk have, plain DCP reads as it reads torch's own checkpoints."""

from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.agent.snapshots.test_round_trip import settle
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from hetagent import snapshots
from hetagent.snapshots.folder import SnapshotFiles
from hetagent.snapshots.memory import locate_tensor
from hetagent.snapshots.node.to_disk import write_snapshot

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is ", "ignore:ComplexHalf")

DTYPES = sorted({dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}, key=str)


def written(folder: Path, state: dict[str, Any]) -> Path:
    """A checkpoint of a state, as the agent's child makes it."""
    snaps = snapshots.open(state, directory=folder / "memory")
    for step in (1, 2):
        if "optimizer" in state:
            state["optimizer"].step()
        snaps.step(step)
        settle(snaps)
    [slot] = SnapshotFiles(folder / "memory").find_slots().values()
    write_snapshot(slot, folder / "disk", [0])
    return folder / "disk"


@pytest.mark.parametrize("shape", [(3, 4), (0, 2), ()])
def test_tensors_of_all_dtypes_come_back(tmp_path: Path, shape: tuple[int, ...]) -> None:
    model, read = torch.nn.Module(), {}
    for dtype in DTYPES:
        try:
            value = torch.ones(shape).to(dtype)
            torch.save(torch.empty_like(value).copy_(value), BytesIO())
        except (RuntimeError, TypeError, KeyError):
            continue  # torch cannot copy or save it either
        name = f"a_{dtype}".replace("torch.", "")
        model.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
        read[name] = torch.zeros(shape).to(dtype)
    assert {"a_float8_e5m2", "a_uint16", "a_complex64", "a_bool"} <= read.keys()
    path = written(tmp_path, {"model": model})
    dcp.load({"model": read}, checkpoint_id=path)
    dcp_to_torch_save(path, tmp_path / "all.pt")
    for found in (read, torch.load(tmp_path / "all.pt")["model"]):
        for name, value in model.state_dict().items():
            assert (found[name].dtype, found[name].shape) == (value.dtype, shape)
            assert found[name].untyped_storage().tolist() == value.untyped_storage().tolist(), name


class Tied(nn.Module):
    """With one weight, unless it is not tied, one module and its buffer under two names."""

    def __init__(self, *, is_tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 4)
        self.norm = self.last_norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 4, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.last_norm(self.norm(self.embed(inputs)))) * self.bias.sum()  # type: ignore[no-any-return]


def test_what_has_two_names_has_both_and_lies_there_once(tmp_path: Path) -> None:
    model = Tied()
    optimizer = torch.optim.AdamW(model.embed.parameters())
    model(torch.arange(4)).sum().backward()
    path = written(tmp_path, {"model": model, "optimizer": optimizer})
    assert (path / "shared.bin").stat().st_size < 5000
    read = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    dcp.load({"model": read}, checkpoint_id=path)
    dcp_to_torch_save(path, tmp_path / "all.pt")
    nested = torch.load(tmp_path / "all.pt", weights_only=False)["model"]
    again = Tied(is_tied=False)
    state = {"model": again, "optimizer": torch.optim.AdamW(again.embed.parameters())}
    assert snapshots.open(state, directory=tmp_path / "memory").load() == 2
    for found in (read, nested, again.state_dict()):
        assert found.keys() == model.state_dict().keys()
        for name, value in model.state_dict().items():
            assert torch.equal(found[name], value), name
    again.load_state_dict(nested)


def test_no_memory_is_taken_for_what_comes_before_a_tensor() -> None:
    place = locate_tensor("model.weight", torch.empty(1 << 20, 1 << 20, 1 << 10, device="meta"))
    assert place.head < 1000
