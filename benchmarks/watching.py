"""What it costs a worker to be watched, and to say how far it has come.

    python -m benchmarks.watching [--windows 20] [--seconds 5]

Two workers train with gloo. In every other window of time the agent watches them as ever; in those between it
does nothing. So both are measured on the same workers, in one run. Then what one answer costs, by the CPU time of
the server's threads in the worker, and one call of `progress`.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tables import Table
from hetagent.monitor import progress_files
from hetagent.monitor.round_watch import opening
from hetagent.monitor.stall_detector import Track
from hetagent.monitor.worker_probe import TICK_S, WorkerProbe
from hetagent.node.network import hold_port
from hetagent.progress import FILE
from hetagent.worker import runner

SCRIPT = """
import os, torch, torch.distributed as dist
from hetagent import progress
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(
    *(torch.nn.Linear(256, 256) for _ in range(4))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.randn(64, 256)
step = 0
while True:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    step += 1
    progress.progress(step)
"""

SETTLE_S = 5.0
"""How long the workers train before anything is measured (seconds)."""

CALLS = 1_000_000


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=20, help="of each kind")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a window")
    asked = parser.parse_args()
    table = Table(
        f"Watcher 2 workers, {asked.windows} windows of {asked.seconds:g} s of each kind in turn", "", "", ""
    )
    with tempfile.TemporaryDirectory(prefix="het") as folder:
        workers = _start(Path(folder))
        try:
            _measure(table, workers, asked.windows, asked.seconds)
        finally:
            for process, *_ in workers:
                process.kill()
                process.wait()
    setup = "from hetagent import progress"
    for name, path in (("with an agent", tempfile.mktemp(prefix="het")), ("without", "")):
        os.environ[FILE] = path
        command = [sys.executable, "-m", "timeit", "-n", str(CALLS), "-r", "5", "-u", "nsec", "-s", setup]
        done = subprocess.run(
            [*command, "progress.progress(17)"], capture_output=True, text=True, check=True, timeout=60
        )
        table.row(f"`progress(step)` {name}", done.stdout.rpartition("best of 5: ")[2].strip())
    table.show()


def _start(folder: Path) -> Sequence[tuple["subprocess.Popen[bytes]", str, str]]:
    """The workers, with the file and the socket of each."""
    (folder / "script.py").write_text(SCRIPT)
    with hold_port("127.0.0.1", None) as held:
        port = held.getsockname()[1]
    started = []
    for rank in range(2):
        file, socket = str(folder / str(rank)), str(folder / f"{rank}.sock")
        job = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environ = {
            **os.environ,
            **job,
            FILE: file,
            **opening(socket),
            "TORCH_FR_BUFFER_SIZE": "20",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-u", runner.__file__, str(folder / "script.py")]
        started.append((subprocess.Popen(command, env=environ), file, socket))
    return started


def _measure(
    table: Table,
    workers: Sequence[tuple["subprocess.Popen[bytes]", str, str]],
    windows: int,
    seconds: float,
) -> None:
    probes = [
        WorkerProbe(Track(time.monotonic(), pid=process.pid), 2, file, socket, cpu=True)
        for process, file, socket in workers
    ]
    first = workers[0][1]
    while progress_files.read(first).step is None:
        time.sleep(0.1)
    _window(probes, SETTLE_S)
    rates: dict[bool, list[float]] = {True: [], False: []}
    answers = cpu_s = own_s = 0.0
    for number in range(2 * windows):
        watched = number % 2 == 0
        before, began = progress_files.read(first).step or 0, time.monotonic()
        served, own = _served_s(workers[0][0].pid), time.process_time()
        if watched:
            answers += _window(probes, seconds)
            cpu_s += _served_s(workers[0][0].pid) - served
            own_s += time.process_time() - own
        else:
            time.sleep(seconds)
        rates[watched].append(((progress_files.read(first).step or 0) - before) / (time.monotonic() - began))
    means = {kind: statistics.fmean(found) for kind, found in rates.items()}
    pairs = [100 * (one / other - 1) for one, other in zip(rates[True], rates[False], strict=True)]
    error = statistics.stdev(pairs) / len(pairs) ** 0.5 if len(pairs) > 1 else 0.0
    table.row("steps per second, watched", f"{means[True]:.1f}")
    table.row("not watched", f"{means[False]:.1f}")
    table.row("difference", f"{statistics.fmean(pairs):+.2f} %", f"standard error {error:.2f} %")
    table.row("CPU of a worker per answer", f"{1e3 * cpu_s / answers:.2f} ms", f"{answers:.0f} answers")
    table.row("of its core", f"{100 * cpu_s / (windows * seconds):.3f} %")
    table.row("CPU of the agent per worker", f"{100 * own_s / (windows * seconds) / 2:.2f} % of a core")


def _window(probes: Sequence[WorkerProbe], seconds: float) -> int:
    """Watch as the agent does; how many answers the first worker gave."""
    until, answers = time.monotonic() + seconds, 0
    while (now := time.monotonic()) < until:
        for probe in probes:
            probe.look(now)
        for probe in probes:
            while probe.query is not None and time.monotonic() < now + TICK_S:
                probe.receive()
                answers += probe is probes[0] and probe.query is None
                time.sleep(0.0005)
        time.sleep(max(0.0, min(now + TICK_S, until) - time.monotonic()))
    return answers


def _served_s(pid: int) -> float:
    """The CPU time of the server's threads in a worker (seconds)."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        if (thread / "comm").read_text().startswith("pt_workerserver"):
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


if __name__ == "__main__":
    main()
