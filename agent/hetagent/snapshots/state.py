"""What a script's state consists of, by name: as torch's `get_state_dict` names it, without calling what that calls.

`get_state_dict` makes an optimizer's state by a real step where there is none, so nothing here does that.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.stateful import Stateful
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from hetagent.snapshots.devices import Devices
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


def optimizer_in(value: object) -> Optimizer | None:
    """The optimizer that a value is, or wraps as Accelerate and Lightning Fabric do."""
    inner = getattr(value, "optimizer", None)
    if isinstance(inner, Optimizer) and hasattr(value, "param_groups"):  # a scheduler has one, too
        return optimizer_in(inner)
    return value if isinstance(value, Optimizer) else None


def module_in(value: nn.Module) -> nn.Module:
    """The module itself, or the one that DDP or Lightning Fabric have wrapped."""
    wrapped = getattr(value, "module", None)
    is_fabric = isinstance(getattr(value, "_forward_module", None), nn.Module)
    if isinstance(wrapped, nn.Module) and (is_fabric or isinstance(value, DistributedDataParallel)):
        return module_in(wrapped)
    inner = getattr(value, "_orig_mod", None)
    return module_in(inner) if isinstance(inner, nn.Module) else value


class State:
    """A script's state, see `hetagent.snapshots.open`."""

    def __init__(self, state: Mapping[str, Any], per_rank: Mapping[str, Any]) -> None:
        self._modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self._tensors: dict[str, Tensor] = {}
        self._replicated: dict[str, Any] = {}
        self._per_rank = dict(per_rank)
        for name, value in state.items():
            _check(name, value)
            if (optimizer := optimizer_in(value)) is not None:
                _check(name, optimizer)
                self.optimizers[name] = optimizer
            elif isinstance(value, nn.Module):
                for module in value.modules():
                    _check(name, module)
                self._modules[name] = module_in(value)
            elif isinstance(value, Tensor):
                self._tensors[name] = value
            else:
                _check_plain(name, value)
                self._replicated[name] = value
        for name, value in per_rank.items():
            if isinstance(value, nn.Module | Optimizer | Tensor):
                raise SnapshotError(f"per_rank '{name}' is a {type(value).__name__}: give it as state")
            _check_plain(name, value)
        self._names: dict[Tensor, str] = {}  # of parameters, as optimizers' state has them
        self._parameters: dict[str, Tensor] = {}
        self.aliases: Mapping[str, Sequence[str]] = {}  # other names of parameters
        self._buffers: list[tuple[str, MutableMapping[str, Any], str]] = []  # owners and their keys
        self._extra: dict[str, nn.Module] = {}
        self._grouped: dict[str, list[list[str]]] = {}  # names of parameters, by optimizer
        # Whether optimizers of so many parameters keep more than tensors.
        self._counted, self._has_plain = -1, False
        self._known: list[int] | None = None  # how many groups of parameters there were when that was found

    def find_names(self) -> None:
        """Find the names of parameters and buffers; calls `state_dict()` of modules, which shards FSDP2's again."""
        known = [len(optimizer.param_groups) for optimizer in self.optimizers.values()]
        if known == self._known:
            return
        self._buffers = [(name, self._tensors, name) for name in self._tensors]
        firsts: dict[Tensor, str] = {}
        aliases = defaultdict[str, list[str]](list)
        for prefix, module in self._modules.items():
            module.state_dict()
            for path, parameter in module.named_parameters(remove_duplicate=False):
                (name,) = get_fqns(module, path)
                full = f"{prefix}.{name}"
                if (first := firsts.setdefault(parameter, full)) != full:
                    aliases[first].append(full)
                    continue
                self._names[parameter] = full if len(self._modules) > 1 else name
                self._parameters[full] = parameter
            for path, owner in module.named_modules(remove_duplicate=False):
                keys = [key for key in owner._buffers if key not in owner._non_persistent_buffers_set]
                if type(owner).get_extra_state is not nn.Module.get_extra_state:
                    keys.append("_extra_state")
                for key in keys:
                    (name,) = get_fqns(module, f"{path}.{key}" if path else key)
                    if key in owner._buffers:
                        self._buffers.append((f"{prefix}.{name}", owner._buffers, key))
                    else:
                        self._extra[f"{prefix}.{name}"] = owner
        for name, optimizer in self.optimizers.items():
            groups = [group["params"] for group in optimizer.param_groups]
            if any(parameter not in self._names for group in groups for parameter in group):
                raise SnapshotError(
                    f"optimizer '{name}' has parameters of no module of the state: give that module, too"
                )
            self._grouped[name] = [[self._names[parameter] for parameter in group] for group in groups]
        self.aliases = aliases
        self._known = known

    # -- what there is ---------------------------------------------------------------------------------------

    def optimized_tensors(self) -> dict[str, Tensor]:
        """What only optimizers change: parameters and their own tensors. Calls nothing of the script."""
        return dict(sorted({**self._parameters, **dict(self._states(tensors=True))}.items()))

    def version_sum(self) -> int:
        """Another number once anything has changed parameters in place."""
        return sum(map(_version, self._parameters.values()))

    def device(self) -> torch.device:
        """Where this rank has its parameters."""
        self.find_names()
        return next((each.device for each in self._parameters.values()), torch.device("cpu"))

    def _states(self, *, tensors: bool) -> Iterator[tuple[str, Any]]:
        """What optimizers have for each parameter. Calls nothing of the script."""
        for prefix, optimizer in self.optimizers.items():
            for parameter, state in list(optimizer.state.items()):  # it may be growing just now
                for key, value in list(state.items()):
                    if isinstance(value, Tensor) == tensors and parameter in self._names:
                        yield f"{prefix}.state.{self._names[parameter]}.{key}", value

    def count_optimized(self) -> int:
        """For how many parameters optimizers have something."""
        return sum(len(optimizer.state) for optimizer in self.optimizers.values())

    def devices(self) -> Devices:
        """What has it."""
        return Devices([*self._parameters.values(), *self.other_tensors().values()])

    def other_tensors(self) -> dict[str, Tensor]:
        """Buffers and tensors that were given as such, always in the same order."""
        return {name: owner[key] for name, owner, key in self._buffers if owner[key] is not None}

    def replicated(self) -> dict[str, Any]:
        """Plain values that have to be the same on all ranks; calls `state_dict()` of what has it."""
        self.find_names()
        values = {name: _value(value) for name, value in self._replicated.items()}
        values |= {name: module.get_extra_state() for name, module in self._extra.items()}
        if self.count_optimized() != self._counted:  # to look each time takes long
            self._counted, self._has_plain = self.count_optimized(), any(self._states(tensors=False))
        values |= self._states(tensors=False) if self._has_plain else {}
        for prefix, optimizer in self.optimizers.items():
            groups = zip(optimizer.param_groups, self._grouped[prefix], strict=True)
            values[f"{prefix}.param_groups"] = [{**group, "params": names} for group, names in groups]
        return values

    def per_rank(self) -> dict[str, Any]:
        """Plain values of this rank; calls `state_dict()` of what has it."""
        return {name: _value(value) for name, value in self._per_rank.items()}

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
                _refuse(name, there.get(name), here.get(name))
        holders = {
            f"{prefix}.state.{name}": (parameter, optimizer)
            for prefix, optimizer in self.optimizers.items()
            for parameter, name in self._names.items()
        }
        # Sorted, so that all ranks have the same order: full_tensor() is a collective.
        for name in sorted(shapes.keys() - targets.keys() - {*chain(*self.aliases.values())}):
            (shape, dtype), (holder, _, key) = shapes[name], name.rpartition(".")
            if holder not in holders:
                _refuse(name, shape, None)
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
                    _take(value, saved[name])

    # -- when it changes -------------------------------------------------------------------------------------

    def on_optimizer_step(self, changes: Callable[[], None]) -> None:
        """Have a function called before each step of an optimizer."""
        for optimizer in self.optimizers.values():
            optimizer.register_step_pre_hook(lambda *_: changes())


def _steps_on_device(optimizer: Optimizer) -> bool:
    return any(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)


def _refuse(name: str, *shapes: torch.Size | None) -> NoReturn:
    there, here = (f"has the shape {[*shape]}" if shape is not None else "does not exist" for shape in shapes)
    raise SnapshotError(f"'{name}' {there} in the snapshot, and {here} here: it is of another model")


def _check(name: str, value: object) -> None:
    for kind in type(value).__mro__:
        if kind.__name__ in REFUSED:
            raise SnapshotError(f"'{name}' has a {kind.__name__}: {REFUSED[kind.__name__]}")


def _check_plain(name: str, value: object) -> None:
    if not isinstance(value, Stateful | MutableMapping | MutableSequence):
        raise SnapshotError(
            f"'{name}' is a {type(value).__name__}, into which nothing can be loaded: give an object with state_dict() "
            "and load_state_dict(), or a dictionary that has it"
        )


def _value(value: Any) -> Any:
    return value.state_dict() if isinstance(value, Stateful) else value


def _take(value: Any, saved: Any) -> None:
    if isinstance(value, Stateful):
        value.load_state_dict(saved)
    elif isinstance(value, MutableMapping):
        value.clear()
        value.update(saved)
    else:
        value[:] = saved
