"""For training scripts: the state of training, kept in memory that outlives the worker. Needs torch.

    from hetagent import snapshots

    snaps = snapshots.open({"model": model, "optimizer": optimizer, "sampler": sampler})
    step = snaps.load() or 0          # the newest state that is complete, in this world
    for step in range(step, last):
        train_one_step()
        snaps.step(step + 1)          # the state is whole here

Under hetagent, snapshots go to memory that the agent owns, and when a round ends, the workers that live save the last
step, too. Without an agent they go to a directory, for one machine. See docs/snapshots.md.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetagent.snapshots.errors import SnapshotError
from hetagent.snapshots.folder import FOLDER, SnapshotFiles
from hetagent.snapshots.on_disk import require_private

if TYPE_CHECKING:
    from hetagent.snapshots.copying import WorkerRank
    from hetagent.snapshots.script import Snapshots

__all__ = ["SnapshotError", "open", "save_now"]

LOCAL = "snapshots"
"""Where snapshots go without an agent, below the working directory."""

AGENT = "HET_NODE_ID"
"""A variable that workers of an agent have, also of one that keeps no snapshots."""

_opened: "dict[Path, Snapshots]" = {}  # by folder


def open(  # noqa: A001 - as in `snapshots.open`
    state: Mapping[str, Any],
    *,
    per_rank: Mapping[str, Any] | None = None,
    directory: str | os.PathLike[str] | None = LOCAL,
) -> "Snapshots":
    """Keep a script's state, all of it: what was opened before takes no more steps.

    Args:
        state: by name, what is the same on all ranks, or of which ranks hold parts (FSDP2): modules, optimizers,
            tensors, objects with `state_dict()` and `load_state_dict()`, dictionaries and lists of plain values.
        per_rank: by name, what each rank has of its own, such as random number generators. Where the world has another
            size, a rank without a predecessor keeps what it has.
        directory: where snapshots go without an agent, on one machine; None: nowhere.

    Raises:
        SnapshotError: a value of a kind that cannot be saved, nothing says which rank this worker is, or others can
            write to the directory.
    """
    from hetagent.snapshots.script import Snapshots  # what the agent imports of this package has no torch
    from hetagent.snapshots.state import State

    worker = _find_rank()
    agent_folder = os.environ.get(FOLDER)
    where = agent_folder or (directory if AGENT not in os.environ else None)
    elsewhere = worker.world_size - worker.local_world_size
    if not agent_folder and where is not None and elsewhere:
        where = None
        if worker.rank == 0:
            print(
                f"hetagent.snapshots: no snapshots, since {elsewhere} of {worker.world_size} ranks are on other "
                "machines, and this worker has no agent of hetrdzv",
                file=sys.stderr,
            )
    folder = SnapshotFiles(Path(where)) if where is not None else None
    if folder is not None and not agent_folder:
        require_private(folder.path)
    snaps = Snapshots(folder, State(state, per_rank or {}), worker, has_agent=bool(agent_folder))
    if folder is not None:
        if (former := _opened.get(folder.path)) is not None:
            former.is_replaced = True
        _opened[folder.path] = snaps
    return snaps


def _find_rank() -> "WorkerRank":
    """Which worker this is: as torch.distributed knows it, or before that begins, as the environment says.

    Raises:
        SnapshotError: neither does.
    """
    import torch.distributed as dist

    from hetagent.snapshots.copying import WorkerRank

    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if dist.is_available() and dist.is_initialized():
        return WorkerRank(dist.get_rank(), dist.get_world_size(), local)
    if FOLDER in os.environ and "RANK" not in os.environ:
        raise SnapshotError(
            "nothing says which rank this worker is (RANK is not set): open snapshots after init_process_group"
        )
    return WorkerRank(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")), local)


def save_now(*, ends: bool = False) -> None:
    """Save what is open; what fails is only printed.

    Args:
        ends: the script is over, by an exception perhaps: nobody has to ask this worker again, or to wait for its end.
    """
    for snaps in _opened.values():
        try:
            snaps.save_now(ends=ends)
        except Exception as error:
            print(f"hetagent.snapshots: nothing was saved: {type(error).__name__}: {error}", file=sys.stderr)
