"""Whether this node has memory for more standbys."""

from hetagent.node.memory import free_memory

NEEDED_BYTES = 1 << 30
"""Free memory for each standby to be made; with torch it takes 290 MB (CPU build), more with CUDA."""


def shortage(standbys: int) -> str | None:
    """Why there is no room for so many more standbys; None if there is."""
    free, needed = free_memory(), standbys * NEEDED_BYTES
    if free >= needed:
        return None
    return f"{free / 2**30:.1f} GiB of memory are free, {needed / 2**30:.0f} GiB are needed"
