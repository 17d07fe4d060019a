"""Copies a node's part of a snapshot to disk; who has written last makes a checkpoint of DCP of all nodes' parts.

    python -m hetagent.snapshots.node.to_disk '{"slot": ..., "stamp": [ROUND, STEP], "into": ..., "ranks": [...], ...}'

A process of its own, started by the agent: training goes on meanwhile. It ends once the checkpoint is complete.
"""

import contextlib
import errno
import json
import os
import pickle
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from hetagent.snapshots.errors import SnapshotError, SnapshotSuperseded
from hetagent.snapshots.folder import INDEX, NEW, SHARED, Index, Slot, SnapshotId, write_atomic
from hetagent.snapshots.loading import build_metadata, get_metadata_index, read_small_state
from hetagent.snapshots.on_disk import (
    EXIT_SUPERSEDED,
    METADATA_FILE,
    WRITABLE_BY_OTHERS,
    SnapshotMetadata,
    list_directories,
    require_private,
)
from hetagent.snapshots.sources import Source, SourceError, copy_part
from hetagent.torch_compat.checkpoints import StorageInfo

STALL_S = 60.0
"""After how long without news in the directory whoever is missing there is taken to be gone (seconds): network file
systems show what others write up to a minute late."""

ABSENT_S = 6.0
"""The same for what another node can write as well, or what a snapshot does without: the values of a rank alone, since
state is not sharded (seconds). A grace is often 25 s."""

PAUSE_S = 0.2
"""How often to look there (seconds)."""


def write_snapshot(slot: Slot, into: Path, ranks: Sequence[int], jobs: Sequence[str] = ("",)) -> None:
    """Write the parts of a node, and wait until somebody has made a checkpoint of all parts; SnapshotError: nobody has.

    That is the node with the lowest rank; if it is gone, any other, which also writes what all ranks have alike. What
    is missing of state that is not sharded is left out.

    Args:
        jobs: that this one has gone on with, the oldest first, and this one.
    """
    into.mkdir(parents=True, exist_ok=True)
    for path in (into.parent, into):
        require_private(path)
    first = write_parts(slot, into, ranks, replicated=0 in ranks)
    sizes, changed_at = dict[str, int](), time.monotonic()
    while not (into / METADATA_FILE).exists():
        try:
            now = {path.name: path.stat().st_size for path in into.iterdir()}
        except FileNotFoundError:  # it is being written just now, or was given up
            if into.exists():
                continue
            raise SnapshotSuperseded("another node has given it up") from None
        if now != sizes:
            sizes, changed_at = now, time.monotonic()
        there = [rank for rank in range(first.world_size) if INDEX.format(rank) in now]
        missing = {*range(first.world_size)}.difference(there)
        idle_s = time.monotonic() - changed_at
        lacks_shared = first.shared and SHARED not in now
        wait_s = ABSENT_S if missing or lacks_shared else 0.0
        wait_s += STALL_S if there and there[0] not in ranks else 0.0
        if missing and first.sharded:
            if idle_s >= STALL_S:
                raise SnapshotError(f"the part of rank {min(missing)} is not there after {idle_s:.0f} s")
        elif idle_s >= wait_s:
            if lacks_shared:
                write_parts(slot, into, ranks, replicated=True)
            write_checkpoint(into, jobs[:-1])
        time.sleep(PAUSE_S)


def write_parts(slot: Slot, into: Path, ranks: Sequence[int], *, replicated: bool) -> Index:
    """Write the parts of some ranks, and what all ranks have alike if that is wanted; returns an index."""
    indexes = slot.read_indexes()
    if not indexes.keys() >= {*ranks}:
        raise SnapshotSuperseded("a newer snapshot has taken its memory")
    from_ranks = [*ranks]
    if replicated and not any(indexes[rank].has_replicated for rank in ranks):
        other = next((rank for rank, index in indexes.items() if index.has_replicated), None)
        if other is None:
            raise SnapshotError(f"this node has only a part of step {slot.stamp.step}")
        from_ranks.append(other)
    source = Source({"path": str(slot.path)}, slot.stamp)
    for rank in from_ranks:
        try:
            copy_part(source, rank, into, "" if replicated else SHARED)
        except (SourceError, FileNotFoundError) as error:
            if slot.path.exists():
                raise SnapshotError(f"{error}") from None
            raise SnapshotSuperseded("a newer snapshot has taken its memory") from None
    return indexes[ranks[0]]


def write_checkpoint(into: Path, after: Sequence[str]) -> None:
    """Make a checkpoint of what is there: of the lowest rank also buffers and values, under the script's names."""
    indexes = [
        Index.from_json(path.read_bytes()) for path in into.glob(INDEX.format("*")) if path.stem.isdecimal()
    ]
    first = min(indexes, key=lambda index: index.rank)
    buffers, replicated, _ = read_small_state((into / first.small_file).read_bytes(), torch.device("cpu"))
    metadata = dcp.save({**buffers, **replicated}, storage_writer=dcp.FileSystemWriter(into), no_dist=True)
    places = {get_metadata_index(place): place for index in indexes for place in index.tensors}
    metadata.state_dict_metadata |= build_metadata(places.values()).state_dict_metadata
    metadata.planner_data |= {place.name: (place.name,) for place in places.values()}
    for name, (top, *rest) in metadata.planner_data.items():
        metadata.planner_data[name] = (*top.split(".", 1), *rest)
    for index, place in places.items():
        metadata.storage_data[index] = StorageInfo(
            place.file, place.at - place.head, place.head + place.bytes
        )
    write_atomic(into / ".metadata", pickle.dumps(metadata))
    mark = SnapshotMetadata(
        world_size=first.world_size,
        sharded=first.sharded,
        size=sum(path.stat().st_size for path in into.iterdir() if NEW not in path.name),
        # A rank that was late may write its own over that of who stands in: either is good.
        ranks={index.rank: index.digest if index.writer == index.rank else "" for index in indexes},
        after=tuple(after),
        written_at=int(time.time()),
    )
    _fsync_paths(*into.iterdir(), into)
    write_atomic(into / METADATA_FILE, mark.to_json())
    _fsync_paths(
        into / METADATA_FILE, into, into.parent, into.parent.parent
    )  # which may have been made for it


def _fsync_paths(*paths: Path) -> None:
    """Have files on disk, and not only in memory of this machine, which may be about to be powered off."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # its name was that of one that is not complete
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            except OSError as error:
                if error.errno != errno.EINVAL:  # this file system cannot
                    raise
            finally:
                os.close(fd)


def prune(path: Path, keep: int, jobs: Sequence[str]) -> None:
    """Remove what is older than those that are kept, complete or not; `jobs` as in `write_snapshot`."""
    there = {stamp: each for stamp, each in list_directories(path).items() if stamp.origin in jobs}
    kept = 0
    for stamp in sorted(there, key=lambda stamp: (jobs.index(stamp.origin), *stamp), reverse=True):
        is_complete = (there[stamp] / METADATA_FILE).exists()
        if kept >= keep or (kept and not is_complete):
            (there[stamp] / METADATA_FILE).unlink(missing_ok=True)
            shutil.rmtree(there[stamp], ignore_errors=True)
        kept += is_complete


def main() -> None:
    """Write; what goes wrong is said in the last line."""
    order = json.loads(sys.argv[1])
    slot, into = Slot(Path(order["slot"]), SnapshotId(*order["stamp"])), Path(order["into"])
    with contextlib.suppress(OSError):
        os.nice(10)
    torch.set_num_threads(1)
    os.umask(os.umask(0) | WRITABLE_BY_OTHERS)
    leads = 0 in order["ranks"]
    try:
        write_snapshot(slot, into, order["ranks"], order["jobs"])
        if leads:
            with contextlib.suppress(Exception):  # this one is written, whatever becomes of older ones
                prune(into.parent, order["keep"], order["jobs"])
    except Exception as error:
        if leads and not (into / METADATA_FILE).exists():
            shutil.rmtree(into, ignore_errors=True)
        if isinstance(error, SnapshotSuperseded):
            sys.exit(EXIT_SUPERSEDED)
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
