"""One process per GPU, as torchrun does it; each sees all of the node's GPUs, or only its own."""

from collections.abc import Mapping

from hetagent.errors import CommandError
from hetagent.launch.base import PLAIN, Assignment, Launch, LaunchOptions, PredictedCommand
from hetagent.launch.command import WorkerCommand
from hetagent.node.gpu.devices import VISIBLE


class PerGpuLaunch(Launch):
    """One process per GPU. With --isolate-gpus each sees only its own."""

    help = "a process per GPU, as torchrun does (default)"
    flags = frozenset({"isolate_gpus", "numa_binding", "require_rendezvous", "virtual_local_rank"})
    uses_process_groups = True

    def __init__(self, command: WorkerCommand | None, setup: LaunchOptions = PLAIN) -> None:
        super().__init__(command, setup)
        self._isolated = split_visible_devices(setup.visible, setup.slots) if setup.isolate_gpus else ()

    def worker_env(self, assignment: Assignment, local_rank: int) -> Mapping[str, str | None]:
        """With isolation, the one GPU. LOCAL_RANK stays, for logs and for whatever counts workers."""
        return self._get_worker_gpu(local_rank)

    def predict_command(self, local_rank: int) -> PredictedCommand | None:
        """Everything, unless the group brings the command."""
        return (self._command, self._get_worker_gpu(local_rank)) if self._command is not None else None

    def _get_worker_gpu(self, local_rank: int) -> Mapping[str, str | None]:
        return {VISIBLE: self._isolated[local_rank]} if self._isolated else {}


def split_visible_devices(visible: str | None, slots: int) -> tuple[str, ...]:
    """The entry of CUDA_VISIBLE_DEVICES for each worker of a node."""
    if visible is None:
        return tuple(map(str, range(slots)))
    listed = tuple(entry.strip() for entry in visible.split(",") if entry.strip())
    if not listed:  # CPU workers see none, with or without isolation
        return ()
    if len(listed) < slots:
        raise CommandError(
            f"--isolate-gpus gives each of {slots} workers a GPU of its own, but {VISIBLE}={visible} "
            f"names {len(listed)}: start fewer workers, or leave --isolate-gpus out"
        )
    return listed[:slots]
