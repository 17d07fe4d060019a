"""How much memory this node has left."""

from collections.abc import Sequence
from pathlib import Path

import psutil

CGROUP, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def read_free_memory() -> int:
    """How much memory this process and its children may still take (bytes): the machine's, or its cgroup's."""
    return min([psutil.virtual_memory().available, *_read_cgroup_free_memory()])


def _read_cgroup_free_memory() -> Sequence[int]:
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
