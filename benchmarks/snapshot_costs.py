"""What snapshots cost: while nothing fails, when one is due, and between a worker's death and the next new step.

    python -m benchmarks.snapshot_costs [--mb 100 1000] [--kills 5] [--blocks 40]

*While nothing fails*: one process, DDP-like steps without a network. *Restart*: a job of two workers on one node, DDP
with AdamW, default flags, but that restarts in quick succession wait for nothing. Rank 1 is killed, and time runs until
the first optimizer step of the next round on both ranks, with snapshots and for the same script that loads and keeps
nothing. All sizes are those of parameters and optimizer state together; a copy is one of as many bytes by a single
thread, warm.
"""

import argparse
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from tests.support.cluster import Cluster, cluster

from benchmarks.tables import Table
from benchmarks.warm import KILLED_OFTEN
from hetagent.snapshots.folder import EVERY_S

WARM_UP = 300
"""So many steps take more than half an interval between snapshots."""

STEADY = 12
"""How many steps are made before a kill."""


def copy_s(megabytes: float) -> float:
    """How long a warm copy of so many MB takes a single thread (seconds)."""
    import torch

    source = torch.ones(int(megabytes * 1e6 / 4))
    target = torch.empty_like(source)
    return min(taken(lambda: target.copy_(source)) for _ in range(7))


def taken(what: Callable[[], Any]) -> float:
    """How long something takes (seconds)."""
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def made(megabytes: float, width: int = 512) -> Any:
    """A model of which parameters and AdamW's state are so many MB."""
    import torch

    layers = max(1, round(megabytes * 1e6 / 12 / width**2))
    return torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))


def while_running(megabytes: float, table: Table) -> None:
    """Add the row of one process in which nothing fails."""
    import torch

    from hetagent import snapshots

    torch.set_num_threads(1)
    model = made(megabytes)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        optimizer.step()

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        snaps: Any = snapshots.open({"model": model, "optimizer": optimizer}, directory=folder)
        step()
        snaps.step(1)
        snaps._slots_thread.join()
        due, others, digests, plain = [], [], [], []
        beside = [torch.zeros_like(tensor) for tensor in tensors(model, optimizer)]
        for number in range(2, 12):
            step()
            snaps._schedule.is_due = lambda *_, **__: True
            due.append(taken(lambda number=number: snaps.step(number)))  # type: ignore[misc]
            digests.append(taken(snaps._index_thread.join))
            step()
            plain.append(taken(lambda: copied(model, optimizer, beside)))
        for number in range(12, 42):
            step()  # which leaves nothing of ours in the caches
            snaps._schedule.is_due = lambda *_, **__: False
            others.append(taken(lambda number=number: snaps.step(number)))  # type: ignore[misc]
        snaps._saved = None
        saved = taken(snaps.save_now)
        again = made(megabytes)
        other = torch.optim.AdamW(again.parameters())
        loading = snapshots.open({"model": again, "optimizer": other}, directory=folder)
        loaded = taken(loading.load)
        touched = taken(lambda: [torch.zeros(parameter.numel() * 2) for parameter in model.parameters()])
    copy = copy_s(megabytes)
    values = (median(due), median(plain), median(digests), saved, loaded, touched)
    cells = (f"{value / copy:.2f}" for value in values)
    table.row(f"{megabytes:g} MB", f"{1000 * copy:.1f} ms", f"{1e6 * median(others):.0f} us", *cells)


def tensors(model: Any, optimizer: Any) -> list[Any]:
    """What a snapshot copies."""
    states = (value for state in optimizer.state.values() for value in state.values())
    return [*(parameter.detach() for parameter in model.parameters()), *states]


def copied(model: Any, optimizer: Any, into: list[Any]) -> None:
    """Copy it to ordinary memory that is there."""
    for source, target in zip(tensors(model, optimizer), into, strict=True):
        target.copy_(source)


# -- throughput ----------------------------------------------------------------------------------------------


def throughput(megabytes: float, blocks: int, table: Table) -> None:
    """Add a row: intervals between snapshots, with and without, in turn, in one process."""
    import torch

    from hetagent import snapshots

    torch.set_num_threads(1)
    model = made(megabytes)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.ones(64, 512)

    def step() -> None:
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        snaps: Any = snapshots.open({"model": model, "optimizer": optimizer}, directory=folder)
        number = 0

        def block(steps: int, *, keeps: bool) -> float:
            nonlocal number

            def run() -> None:
                nonlocal number
                for _ in range(steps):
                    step()
                    number += 1
                    if keeps:
                        snaps.step(number)

            return taken(run) / steps

        apart = EVERY_S / 2 / block(WARM_UP, keeps=True)
        every = 1 << int(apart).bit_length() - 1
        costs, plain = [], []
        for at in range(blocks):
            pair = [block(every, keeps=keeps) for keeps in ((True, False) if at % 2 else (False, True))]
            with_s, without_s = pair if at % 2 else reversed(pair)
            snaps._index_thread.join()
            costs.append(with_s / without_s - 1)
            plain.append(without_s)
    error = stdev(costs) / len(costs) ** 0.5
    cells = (
        f"{1000 * median(plain):.1f} ms",
        every,
        f"{100 * mean(costs):.2f} %",
        f"{100 * error:.2f} %",
    )
    table.row(f"{megabytes:g} MB", *cells)


# -- fetched from another node -------------------------------------------------------------------------------


def fetched(megabytes: float, table: Table) -> None:
    """Add a row: a node that has nothing loads what another one has, beside a plain transfer of as many bytes."""
    import torch

    from hetagent import snapshots
    from hetagent.node.network import hold_port
    from hetagent.snapshots.folder import FOLDER, SnapshotFiles
    from hetagent.snapshots.node.server import SnapshotServer

    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as there,
        tempfile.TemporaryDirectory(dir="/dev/shm") as here,
    ):
        model = made(megabytes)
        optimizer = torch.optim.AdamW(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        snaps = snapshots.open({"model": model, "optimizer": optimizer}, directory=there)
        optimizer.step()
        snaps.step(1)
        snaps.save_now()
        [(stamp, slot)] = SnapshotFiles(Path(there)).find_slots().items()
        hold = lambda: hold_port("127.0.0.1", None)  # noqa: E731
        serving = SnapshotServer(Path(there), hold, lambda: "127.0.0.1", print)
        serving.start()
        source = {
            "node": "b",
            "url": f"http://127.0.0.1:{serving.port}/",
            "key": serving.key,
            "ranks": {"0": ""},
        }
        told = {"round": stamp.round, "step": stamp.step, "world_size": 1, "sources": [source]}
        (Path(here) / "start.json").write_text(json.dumps(told))
        os.environ[FOLDER], os.environ["RANK"] = here, "0"
        time.sleep(2.0)  # the other process starts
        again = made(megabytes)
        other = torch.optim.AdamW(again.parameters())
        loading = snapshots.open({"model": again, "optimizer": other})
        loaded = taken(loading.load)
        source |= {"node": "a", "path": str(slot.path)}
        (Path(here) / "start.json").write_text(json.dumps(told))
        third = made(megabytes)
        another = torch.optim.AdamW(third.parameters())
        os.remove(Path(here) / "ask" / "0")
        from_here = taken(snapshots.open({"model": third, "optimizer": another}).load)
        serving.close()
        del os.environ[FOLDER], os.environ["RANK"]
        size = sum(path.stat().st_size for path in slot.path.iterdir())
    plain = min(transferred(size) for _ in range(5))
    more = (loaded - from_here) / plain
    table.row(f"{megabytes:g} MB", f"{plain:.3f}", f"{loaded:.3f}", f"{from_here:.3f}", f"{more:.2f}")


def transferred(size: int) -> float:
    """How long so many bytes take over a TCP connection of this machine, into memory that is there (seconds)."""
    source, into = bytes(size), bytearray(size)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(source)

        thread = threading.Thread(target=send)
        thread.start()

        def receive() -> None:
            with socket.create_connection(server.getsockname()) as connection:
                left = memoryview(into)
                while left:
                    left = left[connection.recv_into(left) :]

        took = taken(receive)
        thread.join()
    return took


# -- a worker is killed --------------------------------------------------------------------------------------


def worker(into: Path, megabytes: float, *, keeps: bool) -> None:
    """What the workers run."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from hetagent import snapshots

    dist.init_process_group("gloo")
    model = made(megabytes)
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(trained.parameters())
    snaps = snapshots.open({"model": model, "optimizer": optimizer}) if keeps else None
    log = (into / f"{os.getpid()}.jsonl").open("a", buffering=1)
    who = {"round": int(os.environ["HET_ROUND"]), "rank": dist.get_rank(), "pid": os.getpid()}
    began = time.monotonic()
    first = (snaps.load() if snaps is not None else None) or 0
    loaded_s = time.monotonic() - began
    inputs = torch.ones(1, 512)
    for step in range(first, 1 << 40):
        trained(inputs).sum().backward()
        optimizer.step()
        if snaps is not None:
            snaps.step(step + 1)
        log.write(json.dumps({**who, "step": step, "at": time.monotonic(), "loaded_s": loaded_s}) + "\n")


def restarts(megabytes: float, kills: int, *, keeps: bool) -> tuple[list[float], list[float]]:
    """Seconds from each kill to the first step of all ranks, and how long the slower rank has loaded."""
    back, loads = [], []
    with (
        tempfile.TemporaryDirectory(prefix="hetrdzv-costs-") as folder,
        cluster(Path(folder), "--nnodes", "1") as job,
    ):
        log = Path(folder) / "log"
        log.mkdir()
        words = ["--worker", str(log), "--mb", str(megabytes), *(["--keeps"] if keeps else [])]
        flags = ("--max-restarts", str(kills), *KILLED_OFTEN, "--preload", "auto")
        job.agent("a", 2, *flags, script=__file__, args=words)
        number, killed_at = 0, 0.0
        for _ in range(kills + 1):
            lines = job.wait_for(lambda number=number: steady(log, number), "steps", 300)  # type: ignore[misc]
            number = lines[0]["round"]
            if killed_at:
                firsts = [min(line["at"] for line in lines if line["rank"] == rank) for rank in (0, 1)]
                back.append(max(firsts) - killed_at)
                loads.append(max(line["loaded_s"] for line in lines))
            ready(job)
            killed_at = time.monotonic()
            os.kill(next(line["pid"] for line in lines if line["rank"] == 1), signal.SIGKILL)
    return back, loads


def ready(job: Cluster) -> None:
    """Wait for standbys."""
    job.wait_for(lambda: len(job.agents["a"].standbys()) == 2, "standbys", 120)
    time.sleep(2.0)


def steady(log: Path, above: int) -> list[dict[str, Any]]:
    """The lines of the newest round after `above`, once both ranks have made some steps in it."""
    texts = (text for path in log.glob("*.jsonl") for text in path.read_text().splitlines())
    lines = [json.loads(text) for text in texts if text.endswith("}")]
    newest = max((line["round"] for line in lines), default=0)
    there = [line for line in lines if line["round"] == newest]
    enough = all(sum(line["rank"] == rank for line in there) >= STEADY for rank in (0, 1))
    return there if newest > above and enough else []


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=float, nargs="+", default=[100.0, 1000.0])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--keeps", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        worker(args.worker, args.mb[0], keeps=args.keeps)
    columns = ("a copy", "none due", "due", "the same copied to ordinary memory then")
    columns += (
        "its digest, beside the script",
        "saved at the end",
        "loaded",
        "the new memory of that, only touched",
    )
    table = Table("snaps.step() of one process in /dev/shm, in copies of the state", "state", *columns)
    for megabytes in args.mb:
        while_running(megabytes, table)
    table.show()
    columns = ("a step without", "steps between snapshots", "with snapshots: longer by", "standard error")
    table = Table("Throughput of one process, blocks with and without snapshots in turn", "state", *columns)
    for megabytes in args.mb[:1] if args.blocks else ():
        throughput(megabytes, args.blocks, table)
    table.note("Each block is one interval between snapshots.")
    table.show()
    columns = ("plain TCP (s)", "loaded (s)", "loaded again, from here (s)", "difference / plain TCP")
    table = Table("An empty node loads what another one has, over the loopback", "state", *columns)
    for megabytes in args.mb:
        fetched(megabytes, table)
    table.show()
    columns = ("with snapshots (s)", "loads nothing (s)", "difference, in copies", "of this loading")
    table = Table("A worker of two is killed: until the first new step of both", "state", *columns)
    for megabytes in args.mb if args.kills else ():
        copy = copy_s(megabytes)
        (with_s, loads), (without_s, _) = (
            restarts(megabytes, args.kills, keeps=keeps) for keeps in (True, False)
        )
        cells = (f"{median(values):.2f}, {max(values):.2f}" for values in (with_s, without_s))
        copies = (median(with_s) - median(without_s)) / copy, median(loads) / copy
        table.row(f"{megabytes:g} MB", *cells, *(f"{each:.1f}" for each in copies))
    table.note("Median, worst.")
    table.show()


if __name__ == "__main__":
    sys.exit(main())
