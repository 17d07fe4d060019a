"""What the check before a commit costs, beside all the CPU time that the change takes: python -m benchmarks.checking

A service on SQLite, without HTTP, with one group of 10,000 nodes: they join, one by one and all at once, a round forms,
each says that its workers have started, the round is restarted, and the next one forms.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from hetrdzv.core.commands import Command, Join, Report, Restart, Tick
from hetrdzv.protocol.states import ReportKind
from hetrdzv.service import ledger
from hetrdzv.service.service import Service
from hetrdzv.storage.sqlite import SqliteStore

GROUP = "g"


class Checked:
    """The check of `ledger`, and the CPU time that it has taken so far (seconds)."""

    def __init__(self) -> None:
        self.took_s = 0.0
        self._check = ledger.check

    def __call__(self, *args: object) -> None:
        began = time.thread_time()
        self._check(*args)  # type: ignore[arg-type]
        self.took_s += time.thread_time() - began


def join(number: int, nodes: int, after_round: int = 0) -> Join:
    return Join(
        node_id=f"n{number}",
        incarnation="1",
        slots=8,
        address="10.0.0.1",
        port=4000,
        after_round=after_round,
        spec={"min_nodes": nodes, "max_nodes": nodes, "last_call_s": 0.0},
    )


async def measure(nodes: int) -> None:
    """Print a row for each kind of change."""
    ledger.check = checked = Checked()  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        service = Service(SqliteStore(Path(folder, "state.db")))
        await service.start()

        async def all_of(commands: Iterable[Command]) -> None:
            await asyncio.gather(*(service.execute(GROUP, command) for command in commands))

        async def each_of(commands: Iterable[Command]) -> None:
            for command in commands:
                await service.execute(GROUP, command)

        async def row(what: str, times: int, work: Callable[[], Awaitable[object]]) -> None:
            cpu, before = time.process_time(), checked.took_s
            await work()
            cpu, check = time.process_time() - cpu, checked.took_s - before
            share = check / cpu
            print(
                f"{what:44} {cpu / times * 1e3:9.2f} ms {check / times * 1e3:9.3f} ms {share:7.1%}",
                flush=True,
            )

        def started(numbers: Iterable[int]) -> list[Command]:
            return [
                Report(node_id=f"n{n}", incarnation="1", round=1, kind=ReportKind.STARTED) for n in numbers
            ]

        last = nodes - 1
        print(f"{'change, each':44} {'CPU in all':>12} {'check':>12}   share")
        await row(
            "all but 21 nodes join at once", 1, lambda: all_of(join(n, nodes) for n in range(nodes - 21))
        )
        await row("a node joins", 20, lambda: each_of(join(n, nodes) for n in range(nodes - 21, last)))
        await row("the last one joins, and the round forms", 1, lambda: all_of([join(last, nodes)]))
        await row("a node has started", 20, lambda: each_of(started(range(20))))
        await row("all have started", 1, lambda: all_of(started(range(20, nodes))))
        await row("nothing (tick)", 20, lambda: each_of([Tick()] * 20))
        await row("the round ends", 1, lambda: all_of([Restart()]))
        again = [join(n, nodes, after_round=1) for n in range(nodes)]
        await row("all are ready again, the next round forms", 1, lambda: all_of(again))
        await service.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checking", description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000, help="in the group (default: 10000)")
    asyncio.run(measure(parser.parse_args().nodes))


if __name__ == "__main__":
    main()
