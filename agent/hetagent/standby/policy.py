"""When there are standbys: what the person asked for, and what this node has room for."""

from collections.abc import Sequence
from pathlib import Path

import psutil

from hetagent.launch.command import WorkerCommand
from hetagent.options.model import UsageError

NONE = "none"
AUTO = "auto"
DEFAULT = AUTO

NEEDED_BYTES = 1 << 30
"""Free memory for each standby to be made; with torch it takes 290 MB (CPU build), more with CUDA."""

CGROUP, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def modules(
    preload: str | None, default: str | None, launch: str, command: WorkerCommand | None
) -> tuple[tuple[str, ...], str | None]:
    """The modules that standbys import, and a line for the terminal where there are none although nobody said so.

    Args:
        preload: --preload as given; None: not given.
        default: HET_PRELOAD; None: not set.
        launch: --launch.
        command: what the workers run; None: the group's command.

    Raises:
        UsageError: a name that is no module's, or standbys asked for where there can be none.
    """
    asked = tuple(name.strip() for name in (preload or default or DEFAULT).split(","))
    if asked == (NONE,):
        return (), None
    for name in asked:
        if not all(part.isidentifier() for part in name.split(".")):
            flag = "--preload" if preload else "HET_PRELOAD"
            raise UsageError(
                f"{flag} takes names of modules with commas between them, {AUTO}, or {NONE}, not {name!r}"
            )
    problem = None
    if launch != "gpu":
        problem = f"--launch {launch} starts processes of other kinds"
    elif command is not None and not command.is_python:
        problem = f"{Path(command.entrypoint).name} is not a Python script"
    if problem is None:
        return asked, None
    if preload is not None:
        raise UsageError(f"--preload {preload} makes no sense here, since {problem}: leave it out")
    return (), f"no standby processes, so restarts import everything again: {problem}"


def memory_shortage(standbys: int) -> str | None:
    """Why there is no room for so many more standbys; None if there is."""
    free, needed = free_memory(), standbys * NEEDED_BYTES
    if free >= needed:
        return None
    return f"{free / 2**30:.1f} GiB of memory are free, {needed / 2**30:.0f} GiB are needed"


def free_memory() -> int:
    """How much memory this process and its children may still take (bytes): the machine's, or its cgroup's."""
    return min([psutil.virtual_memory().available, *_cgroup_room()])


def _cgroup_room() -> Sequence[int]:
    """What is left of the limits of this process's cgroups, version 2 (bytes)."""
    try:
        [own] = [line[3:] for line in OWN_CGROUP.read_text().splitlines() if line.startswith("0::")]
    except (OSError, ValueError):
        return []
    room = []
    folder = CGROUP / own.lstrip("/")
    for place in (folder, *folder.parents):
        try:
            limit = (place / "memory.max").read_text().strip()
            if limit != "max":
                # Files in the page cache count as used, though the kernel would give them up.
                reclaimable = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
                used = int((place / "memory.current").read_text()) - int(reclaimable.get("inactive_file", 0))
                room.append(int(limit) - used)
        except (OSError, ValueError):
            pass
        if place == CGROUP:
            break
    return room
