"""Runs a function in ranks that meet by gloo: forks of a process that has imported torch once."""

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

TIMEOUT_S = 100.0

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    ["pytest", "torch._dynamo", "tests.support.worlds.jobs", "hetagent.snapshots.script"]
)


class RanksFailed(Exception):
    """Some ranks have raised; the text has their tracebacks."""


def run(world_size: int, function: Callable[..., Any], *args: Any, nodes: int = 1) -> list[Any]:
    """What the function returns on each rank.

    Args:
        function: of a module, called with the arguments.
        nodes: over how many the ranks are spread evenly.

    Raises:
        RanksFailed: some have raised.
    """
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for rank in range(world_size):
            mine, theirs = _forks.Pipe(duplex=False)
            place = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size // nodes}
            told = (f"file://{folder}/store", {name: str(number) for name, number in place.items()})
            process = _forks.Process(target=_rank, args=(theirs, *told, function, args), daemon=True)
            process.start()
            theirs.close()
            running.append((process, mine))
        try:
            answers = [_answer(mine) for _, mine in running]
        finally:
            for process, mine in running:
                process.kill()
                process.join()
                process.close()
                mine.close()
    failed = [answer for raised, answer in answers if raised]
    if failed:
        raise RanksFailed("\n".join(map(str, failed)))
    return [answer for _, answer in answers]


def _answer(pipe: "Connection[Any, Any]") -> tuple[bool, Any]:
    """Whether a rank has raised, and what, or what it has returned."""
    try:
        return pickle.loads(pipe.recv_bytes()) if pipe.poll(TIMEOUT_S) else (True, "it hangs")
    except EOFError:
        return True, "it died"


def _rank(pipe: Any, store: str, place: dict[str, str], function: Callable[..., Any], args: Any) -> None:
    import torch
    import torch.distributed as dist

    os.environ.update(place)
    rank, world_size = int(place["RANK"]), int(place["WORLD_SIZE"])
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60)
        )
        answer = False, function(*args)
        dist.barrier()
    except BaseException:  # as torch's CheckpointException is
        answer = True, f"rank {rank}: {traceback.format_exc()}"
    pipe.send_bytes(pickle.dumps(answer))
    os._exit(0)  # whoever waits for this rank sees its connections close
