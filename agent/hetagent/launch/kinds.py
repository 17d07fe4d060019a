"""The table of all launch styles."""

from collections.abc import Mapping
from dataclasses import dataclass

from hetagent.launch.base import Launch
from hetagent.launch.gpu import PerGpu
from hetagent.launch.horovod import Horovod
from hetagent.launch.mpi.mpirun import Mpi
from hetagent.launch.node.program import PerNode
from hetagent.options.values import Flags


@dataclass(frozen=True, slots=True)
class Kind:
    """A launch style.

    Attributes:
        help: what `--help` says about it.
        launch: the class that starts workers in this style.
        flags: flags of others that only this style and others that name them allow, beside its own.
    """

    help: str
    launch: type[Launch]
    flags: frozenset[str] = frozenset()


LAUNCHES: Mapping[str, Kind] = {
    "gpu": Kind(
        "a process per GPU, as torchrun does (default)",
        PerGpu,
        frozenset({"--numa-binding", "--require-rendezvous", "--virtual-local-rank"}),
    ),
    "node": Kind(
        "a process per node, with {rank_offset}, {world_size}, ... filled in",
        PerNode,
    ),
    "horovod": Kind(
        "a process per GPU that calls hvd.init(), without mpirun and ssh",
        Horovod,
        frozenset({"--numa-binding", "--require-rendezvous"}),
    ),
    "mpi": Kind("a process per GPU by mpirun (Open MPI 4), without ssh", Mpi),
}
"""Values of --launch."""

DEFAULT_LAUNCH = "gpu"

OWN_FLAGS: Flags = {flag: how for kind in LAUNCHES.values() for flag, how in kind.launch.flags.items()}
"""The flags that launch styles bring along."""


def kinds_with(flag: str) -> list[str]:
    """The launch styles that allow a flag; none for a flag that has nothing to do with launch styles."""
    return [name for name, kind in LAUNCHES.items() if flag in kind.flags or flag in kind.launch.flags]
