"""What a script's state consists of, by name: as torch's `get_state_dict` names it, without calling what that calls.

`get_state_dict` makes an optimizer's state by a real step where there is none, so nothing here does that.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.stateful import Stateful
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from hetagent.snapshots.devices import StateDevices
from hetagent.snapshots.errors import SnapshotError
from hetagent.torch_compat.checkpoints import get_fqns

_version = attrgetter("_version")

REFUSED = {
    "FullyShardedDataParallel": "FSDP1 flattens parameters: use torch.distributed.fsdp.fully_shard (FSDP2)",
    "ZeroRedundancyOptimizer": "its state_dict() needs a collective: use fully_shard (FSDP2), which shards as well",
    "DeepSpeedEngine": "its state_dict() needs a collective: use fully_shard (FSDP2), or DeepSpeed's own checkpoints",
    "DeepSpeedZeroOptimizer": "its state_dict() needs a collective: use fully_shard (FSDP2)",
}
"""Classes whose state cannot be taken by a rank alone, and what to do instead."""


def unwrap_optimizer(value: object) -> Optimizer | None:
    """The optimizer that a value is, or wraps as Accelerate and Lightning Fabric do."""
    inner = getattr(value, "optimizer", None)
    if isinstance(inner, Optimizer) and hasattr(value, "param_groups"):  # a scheduler has one, too
        return unwrap_optimizer(inner)
    return value if isinstance(value, Optimizer) else None


def unwrap_module(value: nn.Module) -> nn.Module:
    """The module itself, or the one that DDP or Lightning Fabric have wrapped."""
    wrapped = getattr(value, "module", None)
    is_fabric = isinstance(getattr(value, "_forward_module", None), nn.Module)
    if isinstance(wrapped, nn.Module) and (is_fabric or isinstance(value, DistributedDataParallel)):
        return unwrap_module(wrapped)
    inner = getattr(value, "_orig_mod", None)
    return unwrap_module(inner) if isinstance(inner, nn.Module) else value


class State:
    """A script's state, see `hetagent.snapshots.open`."""

    def __init__(self, state: Mapping[str, Any], per_rank: Mapping[str, Any]) -> None:
        self._modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self._tensors: dict[str, Tensor] = {}
        self._replicated: dict[str, Any] = {}
        self._per_rank = dict(per_rank)
        for name, value in state.items():
            _require_supported(name, value)
            if (optimizer := unwrap_optimizer(value)) is not None:
                _require_supported(name, optimizer)
                self.optimizers[name] = optimizer
            elif isinstance(value, nn.Module):
                for module in value.modules():
                    _require_supported(name, module)
                self._modules[name] = unwrap_module(value)
            elif isinstance(value, Tensor):
                self._tensors[name] = value
            else:
                _require_loadable(name, value)
                self._replicated[name] = value
        for name, value in per_rank.items():
            if isinstance(value, nn.Module | Optimizer | Tensor):
                raise SnapshotError(f"per_rank '{name}' is a {type(value).__name__}: give it as state")
            _require_loadable(name, value)
        self._names: dict[Tensor, str] = {}  # of parameters, as optimizers' state has them
        self._parameters: dict[str, Tensor] = {}
        self.aliases: Mapping[str, Sequence[str]] = {}  # other names of parameters
        self._buffers: list[tuple[str, MutableMapping[str, Any], str]] = []  # owners and their keys
        self._extra: dict[str, nn.Module] = {}
        self._grouped: dict[str, list[list[str]]] = {}  # names of parameters, by optimizer
        self._known: list[int] | None = None  # how many groups of parameters there were when that was found

    def find_names(self) -> None:
        """Find the names of parameters and buffers; calls `state_dict()` of modules, which shards FSDP2's again."""
        known = [len(optimizer.param_groups) for optimizer in self.optimizers.values()]
        if known == self._known:
            return
        self._buffers = [(name, self._tensors, name) for name in self._tensors]
        firsts: dict[Tensor, str] = {}
        self.aliases = aliases = defaultdict[str, list[str]](list)
        for prefix, module in self._modules.items():
            module.state_dict()
            for path, owner in module.named_modules(remove_duplicate=False):
                buffers = (key for key in owner._buffers if key not in owner._non_persistent_buffers_set)
                keys = [*owner._parameters, *buffers]
                if type(owner).get_extra_state is not nn.Module.get_extra_state:
                    keys.append("_extra_state")
                for key in keys:
                    (name,) = get_fqns(module, f"{path}.{key}" if path else key)
                    full = f"{prefix}.{name}"
                    if key in owner._buffers:
                        self._buffers.append((full, owner._buffers, key))
                    elif key not in owner._parameters:
                        self._extra[full] = owner
                    elif (parameter := owner._parameters[key]) is None:
                        continue
                    elif (first := firsts.setdefault(parameter, full)) != full:
                        aliases[first].append(full)
                    else:
                        self._names[parameter] = full if len(self._modules) > 1 else name
                        self._parameters[full] = parameter
        for name, optimizer in self.optimizers.items():
            groups = [group["params"] for group in optimizer.param_groups]
            if any(parameter not in self._names for group in groups for parameter in group):
                raise SnapshotError(
                    f"optimizer '{name}' has parameters of no module of the state: give that module, too"
                )
            self._grouped[name] = [[self._names[parameter] for parameter in group] for group in groups]
        self._known = known

    # -- what there is ---------------------------------------------------------------------------------------

    def optimized_tensors(self) -> dict[str, Tensor]:
        """What only optimizers change: parameters and their own tensors, by name. Calls nothing of the script."""
        return dict(sorted({**self._parameters, **dict(self._list_optimizer_state(tensors=True))}.items()))

    def optimizer_values(self) -> dict[str, Any]:
        """What optimizers have for parameters beside tensors, likewise."""
        return dict(self._list_optimizer_state(tensors=False))

    def _list_optimizer_state(self, *, tensors: bool) -> Iterator[tuple[str, Any]]:
        for prefix, optimizer in self.optimizers.items():
            for parameter, state in list(optimizer.state.items()):  # it may be growing just now
                for key, value in list(state.items()):
                    if isinstance(value, Tensor) == tensors and parameter in self._names:
                        yield f"{prefix}.state.{self._names[parameter]}.{key}", value

    def sum_versions(self) -> int:
        """Another number once anything has changed parameters in place."""
        return sum(map(_version, self._parameters.values()))

    def device(self) -> torch.device:
        """Where this rank has its parameters."""
        self.find_names()
        return next((each.device for each in self._parameters.values()), torch.device("cpu"))

    def devices(self) -> StateDevices:
        """What has it."""
        return StateDevices([*self._parameters.values(), *self.other_tensors().values()])

    def other_tensors(self) -> dict[str, Tensor]:
        """Buffers and tensors that were given as such, always in the same order."""
        return {name: owner[key] for name, owner, key in self._buffers if owner[key] is not None}

    def replicated_values(self) -> dict[str, Any]:
        """Plain values that have to be the same on all ranks; calls `state_dict()` of what has it."""
        self.find_names()
        values = {name: _get_value(value) for name, value in self._replicated.items()}
        values |= {name: module.get_extra_state() for name, module in self._extra.items()}
        for prefix, optimizer in self.optimizers.items():
            groups = zip(optimizer.param_groups, self._grouped[prefix], strict=True)
            values[f"{prefix}.param_groups"] = [{**group, "params": names} for group, names in groups]
        return values

    def per_rank_values(self) -> dict[str, Any]:
        """Plain values of this rank; calls `state_dict()` of what has it."""
        return {name: _get_value(value) for name, value in self._per_rank.items()}

    # -- what comes back -------------------------------------------------------------------------------------

    def load_targets(
        self,
        shapes: Mapping[str, tuple[torch.Size, torch.dtype]],
        small: Mapping[str, Tensor],
        replicated: Mapping[str, Any],
    ) -> dict[str, Tensor]:
        """Tensors to load into: the script's own, and new ones for the optimizers' state.

        `shapes` has what was saved by name, but for the `other_tensors` or `replicated`.
        """
        self.find_names()
        for name, groups in self._grouped.items():
            saved = [len(group["params"]) for group in replicated.get(f"{name}.param_groups", ())]
            if saved != (own := [len(group) for group in groups]):
                raise SnapshotError(
                    f"optimizer '{name}' has groups of {own} parameters here, and of {saved} in the snapshot: make the "
                    "same groups before load()"
                )
        for name in self._extra.keys() - replicated.keys():
            raise SnapshotError(f"'{name}' does not exist in the snapshot: it is of another model")
        targets = dict(self._parameters)
        there = {name: shape for name, (shape, _) in shapes.items()}
        there |= {name: tensor.shape for name, tensor in small.items()}
        here = {name: tensor.shape for name, tensor in (*targets.items(), *self.other_tensors().items())}
        empty = {name for name, owner, key in self._buffers if owner[key] is None}
        for name in (*here, *(small.keys() - here.keys() - empty)):
            if there.get(name) != here.get(name):
                _raise_mismatch(name, there.get(name), here.get(name))
        holders = {
            f"{prefix}.state.{name}": (parameter, optimizer)
            for prefix, optimizer in self.optimizers.items()
            for parameter, name in self._names.items()
        }
        # Sorted, so that all ranks have the same order: full_tensor() is a collective.
        for name in sorted(shapes.keys() - targets.keys() - {*chain(*self.aliases.values())}):
            (shape, dtype), (holder, _, key) = shapes[name], name.rpartition(".")
            if holder not in holders:
                _raise_mismatch(name, shape, None)
            parameter, optimizer = holders[holder]
            if parameter.shape == shape and key != "step":
                targets[name] = torch.empty_like(parameter.detach(), dtype=dtype)
            else:  # as Optimizer.load_state_dict does
                on_host = key == "step" and not _steps_on_device(optimizer)
                targets[name] = torch.empty(shape, dtype=dtype, device="cpu" if on_host else parameter.device)
        return targets

    def restore(
        self,
        loaded: Mapping[str, Tensor],
        small: Mapping[str, Tensor],
        replicated: Mapping[str, Any],
        per_rank: Mapping[str, Any],
    ) -> None:
        """Give all others what was loaded; parameters have theirs."""
        for name, owner, key in self._buffers:
            if owner[key] is not None:
                owner[key].copy_(small[name])
            elif name in small:
                owner[key] = small[name].to(next(iter(self._parameters.values()), small[name]).device)
        states: dict[str, dict[str, Any]] = {}
        for name, value in (*loaded.items(), *replicated.items()):
            where, _, key = name.rpartition(".")
            states.setdefault(where, {})[key] = value
        for prefix, optimizer in self.optimizers.items():
            optimizer.state.clear()
            for parameter, name in self._names.items():
                if state := states.get(f"{prefix}.state.{name}"):
                    optimizer.state[parameter] = state
            for group, saved in zip(
                optimizer.param_groups, replicated[f"{prefix}.param_groups"], strict=True
            ):
                group.update({key: value for key, value in saved.items() if key != "params"})
        for name, module in self._extra.items():
            module.set_extra_state(replicated[name])
        for values, saved in ((self._replicated, replicated), (self._per_rank, per_rank)):
            for name, value in values.items():
                if name in saved:
                    _set_value(value, saved[name])


def _steps_on_device(optimizer: Optimizer) -> bool:
    return any(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)


def _raise_mismatch(name: str, *shapes: torch.Size | None) -> NoReturn:
    there, here = (f"has the shape {[*shape]}" if shape is not None else "does not exist" for shape in shapes)
    raise SnapshotError(f"'{name}' {there} in the snapshot, and {here} here: it is of another model")


def _require_supported(name: str, value: object) -> None:
    for kind in type(value).__mro__:
        if kind.__name__ in REFUSED:
            raise SnapshotError(f"'{name}' has a {kind.__name__}: {REFUSED[kind.__name__]}")


def _require_loadable(name: str, value: object) -> None:
    if not isinstance(value, Stateful | MutableMapping | MutableSequence):
        raise SnapshotError(
            f"'{name}' is a {type(value).__name__}, into which nothing can be loaded: give an object with state_dict() "
            "and load_state_dict(), or a dictionary that has it"
        )


def _get_value(value: Any) -> Any:
    return value.state_dict() if isinstance(value, Stateful) else value


def _set_value(value: Any, saved: Any) -> None:
    if isinstance(value, Stateful):
        value.load_state_dict(saved)
    elif isinstance(value, MutableMapping):
        value.clear()
        value.update(saved)
    else:
        value[:] = saved
