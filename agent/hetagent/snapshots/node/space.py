"""How much memory snapshots may take on this node, and what to do where that is little."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from hetagent.node.memory import free_memory

SMALL = 256 << 20
"""A file system with less than this is that of a container that nobody has given more (bytes): Docker's has 64 MiB."""

MEND = "docker run --shm-size, or on Kubernetes an emptyDir with medium: Memory at {folder}, gives it more"

_UNITS = {unit: 1 << 10 * power for power, unit in enumerate(["", "K", "M", "G", "T"])}


@dataclass(frozen=True, slots=True)
class Space:
    """Where snapshots are kept.

    Attributes:
        memory: what they may take together (bytes).
        problem: why that is slow or little, and what to do; empty: it is not.
    """

    memory: int
    problem: str = ""


def parsed(text: str) -> int:
    """A number of bytes as people write it: 64G, 500M, 1.5T; `off` is 0.

    Raises:
        ValueError: it is none.
    """
    match = re.fullmatch(
        r"(\d{1,15}(?:\.\d{1,3})?) ?([KMGT]?)(?:i?B)?", text.strip(), re.ASCII | re.IGNORECASE
    )
    if text.strip().lower() == "off":
        return 0
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 64G or 500M, nor off")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def shown(size: int) -> str:
    """A size for people: `1.5 GiB`."""
    return f"{size / 2**30:.3g} GiB" if size >= 1 << 30 else f"{size / 2**20:.3g} MiB"


def space(folder: Path, given: int | None) -> Space:
    """What snapshots may take in a folder.

    Args:
        folder: what is in it already counts as free.
        given: what a person said (bytes); None: half of what is free.

    Raises:
        OSError: nobody can tell.
    """
    stats = os.statvfs(folder)
    there = stats.f_bavail * stats.f_frsize
    used = sum(each.lstat().st_blocks * 512 for each in folder.glob("*/*"))
    in_memory = _file_system(folder) in ("tmpfs", "ramfs")
    free = used + (min(there, free_memory()) if in_memory else there)
    memory = free // 2 if given is None else given
    problem = ""
    if not in_memory:
        problem = f"{folder.parent} is no tmpfs, so they are as slow as its disk: --snapshot-dir names another folder"
    elif memory > free:
        problem = f"only {shown(free)} are free in {folder.parent} for --snapshot-memory {shown(memory)}"
    elif stats.f_blocks * stats.f_frsize <= SMALL:
        total = shown(stats.f_blocks * stats.f_frsize)
        problem = f"{folder.parent} has only {total} for snapshots: {MEND.format(folder=folder.parent)}"
    return Space(memory, problem)


def _file_system(folder: Path) -> str:
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    place = folder.resolve()
    return next((mounts[path] for path in (place, *place.parents) if path in mounts), "")
