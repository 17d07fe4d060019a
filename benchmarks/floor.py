"""Measures the floor of every recovery: the same workers started bare, without any agent or server."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.cluster import WORKLOAD, wait_for
from tests.support.servers import free_port
from tests.support.workload.worklog import WorkLog

from benchmarks.outcomes import Kind, Recovery, started


class Floor:
    """How long so many bare processes take from their start to the first all-reduce of all."""

    def __init__(self) -> None:
        self.kinds: dict[int, Kind] = {}

    def measure(self, size: int, tries: int) -> None:
        """Start a world of a size some times; what was measured before counts too."""
        kind = self.kinds.setdefault(size, Kind(f"{size} bare processes"))
        for _ in range(tries):
            kind.tried += 1
            with tempfile.TemporaryDirectory(prefix="hetrdzv-floor-") as folder:
                kind.recoveries.append(_bare(WorkLog(Path(folder)), size))

    def seconds(self, size: int) -> float:
        """The median for a size that was measured."""
        return self.kinds[size].median_s


def _bare(log: WorkLog, size: int) -> Recovery:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
    same = {"LOCAL_RANK": "0", "TORCHELASTIC_RESTART_COUNT": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-u", str(WORKLOAD), "--into", str(log.folder)]
    began = time.monotonic()
    workers = [
        # in sessions of their own, as an agent's, since the kernel shares out the CPU by session
        subprocess.Popen(command, env=os.environ | place | same | {"RANK": str(rank)}, start_new_session=True)
        for rank in range(size)
    ]
    try:
        world = wait_for(lambda: log.world(size), f"{size} bare processes")
        log.finish()
    finally:
        for worker in workers:
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
    return Recovery(world.at - began, parts=(0.0, 0.0, *started(world, began)))
