"""What a script's state consists of: frameworks wrap modules, and names are those of the modules themselves."""

from pathlib import Path
from typing import Any

import torch
from tests.agent.snapshots.test_save_request import alone
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hetagent.snapshots.state import State


class Wrapped(nn.Module):
    """As Lightning Fabric's: both modules are inside, and state_dict() is that of one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._forward_module = nn.Sequential(module)  # in the place of DistributedDataParallel
        self._original_module = module

    @property
    def module(self) -> nn.Module:
        return self._original_module

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._original_module.state_dict(*args, **kwargs)


def test_a_module_that_fabric_has_wrapped_keeps_its_names_and_buffers() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    names = []
    for given in (module, Wrapped(module)):
        state = State({"model": given, "optimizer": optimizer}, {})
        state.find_names()
        names.append([*state.optimized_tensors(), *state.other_tensors()])
    assert names[0] == names[1]
    assert "model.1.running_mean" in names[0]


def test_a_part_of_a_model_in_ddp_keeps_its_names(tmp_path: Path) -> None:
    """A script may load before it wraps, or wrap in one round and not in the next."""
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), nn.Linear(3, 1))

    def names() -> list[str]:
        state = State({"model": model}, {})
        state.find_names()
        return [*state.optimized_tensors(), *state.other_tensors()]

    before = names()
    with alone(tmp_path):
        model[0] = DistributedDataParallel(model[0])
        assert names() == before
