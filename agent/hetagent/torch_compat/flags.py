"""Which flags the installed torch can do, and what it is asked to run for them."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed.run
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import LogsSpecs, Std
from torch.distributed.elastic.rendezvous import RendezvousHandler
from torch.distributed.elastic.utils import macros

from hetagent.errors import UsageError
from hetagent.options.model import TorchrunOptions
from hetagent.options.torchrun import dest
from hetagent.options.values import Streams

try:
    from torch.numa import binding as numa
except ImportError:  # before 2.9
    numa = None  # type: ignore[assignment]

VERSION = str(torch.__version__)

RELEASE = tuple(int(number) for number in re.findall(r"\d+", VERSION)[:2])

SPEC_FIELDS = frozenset(field.name for field in dataclasses.fields(WorkerSpec))


SINCE_2_10: Mapping[str, bool] = {
    "--duplicate-stdout-filters": "duplicate_stdout_filters" in SPEC_FIELDS,
    "--duplicate-stderr-filters": "duplicate_stderr_filters" in SPEC_FIELDS,
    "--virtual-local-rank": "virtual_local_rank" in SPEC_FIELDS,
    # torch 2.9 binds the thread that starts a worker, which would bind no standby; later ones run it with numactl
    "--numa-binding": hasattr(numa, "_get_validated_logical_cpus_to_bind_to"),
}
"""The flags that need torch 2.10, and whether the installed one has them."""


def check_supported(flags: TorchrunOptions) -> None:
    """Refuse what was asked for and the installed torch cannot do."""
    for flag, is_there in SINCE_2_10.items():
        if getattr(flags, dest(flag)) and not is_there:
            raise UsageError(
                f"{flag} needs torch 2.10 or newer, but torch {VERSION} is installed: "
                "upgrade torch, or leave the flag out"
            )


# -- what torch's agent is to run ------------------------------------------------------------------------------


def make_worker_spec(flags: TorchrunOptions, slots: int, handler: RendezvousHandler) -> WorkerSpec:
    """torch's description of the workers, whose command each round brings."""
    mode = flags.numa_binding
    newer: dict[str, Any] = {
        "duplicate_stdout_filters": list(flags.duplicate_stdout_filters),
        "duplicate_stderr_filters": list(flags.duplicate_stderr_filters),
        "virtual_local_rank": flags.virtual_local_rank,
        "numa_options": mode and numa.NumaOptions(affinity_mode=numa.AffinityMode(mode)),
    }
    return WorkerSpec(
        role=flags.role,
        local_world_size=slots,
        entrypoint="none yet",
        rdzv_handler=handler,
        **{name: value for name, value in newer.items() if name in SPEC_FIELDS},
    )


def does_torch_alter_command(spec: WorkerSpec) -> bool:
    """Whether torch makes the command or the environment of workers itself, so that they cannot be predicted."""
    return any(getattr(spec, name, None) for name in ("numa_options", "virtual_local_rank"))


def to_torch_std(streams: Streams) -> Std | dict[int, Std]:
    """torch's word for output streams."""
    if isinstance(streams, dict):
        return {rank: Std(value) for rank, value in streams.items()}
    return Std(streams)


def parse_nproc_per_node(nproc_per_node: str) -> int:
    """How many workers --nproc-per-node means; a ValueError: it means nothing, or needs devices that are not here."""
    return torch.distributed.run.determine_local_world_size(nproc_per_node)


def substitute_macros(args: Sequence[str], local_rank: int) -> tuple[str, ...]:
    """Arguments with torch's macros filled in."""
    return tuple(macros.substitute(list(args), str(local_rank)))


# -- standbys --------------------------------------------------------------------------------------------------

AUTO_PRELOAD = ("torch", "torch._dynamo")
"""What standbys import before a script has imported anything. torch imports the latter (2.13) when the first optimizer
or DistributedDataParallel is made: 820 modules, as much CPU as the rest of torch."""

# -- logs ------------------------------------------------------------------------------------------------------


def logs_specs_class(name: str) -> type[LogsSpecs]:
    """The class that --logs-specs names; a ValueError: there is none."""
    return torch.distributed.run._get_logs_specs_class(name)
