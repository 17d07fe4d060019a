"""What people who look at the page of a large group cost its server, beside the same without them, in one run.

    python -m benchmarks.viewers [--nodes 1000] [--viewers 50] [--tries 3] [--seconds 10]

Nodes of 8 workers each run in one group and tell with their polls how far those have come. Windows of time without
viewers and with more and more of them take turns; then again while a node joins or leaves twice a second, which
changes what the page shows. A poll that does not wait is sent ten times a second to see how long it takes.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import NamedTuple

from benchmarks.connection import HEAD, Caller, request
from benchmarks.load import SETTLE_S, Fleet, fewer_pauses, plans, settled
from benchmarks.serving import Process, hetserver, raise_file_limit
from benchmarks.tables import Table, median, ms

PROBE_S = 0.1
NEWS_S = 0.5
GROUP = "/groups/view-0"
EVERY_S = 2.0


class Window(NamedTuple):
    """What was seen in a window of time.

    Attributes:
        cores: that the server kept busy.
        probe_s: how long a poll took (seconds).
        bytes_per_s: sent to all viewers.
        sent_per_s: how many sections a viewer was sent.
    """

    cores: float
    polls_per_s: float
    probe_s: float
    bytes_per_s: float
    sent_per_s: float


class Viewer:
    """Somebody who looks at a page, which asks for its sections every two seconds.

    Attributes:
        bytes, pieces: what came so far, and how many sections had changed.
    """

    def __init__(self) -> None:
        self.bytes = self.pieces = 0
        self._known = ""

    async def look(self, port: int) -> None:
        """Go on until cancelled."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        try:
            while True:
                await self._ask(reader, writer)
                await asyncio.sleep(EVERY_S)
        finally:
            writer.transport.abort()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        poll = f"HX-Request: true\r\nIf-None-Match: {self._known}\r\n"
        writer.write(f"GET {GROUP} HTTP/1.1\r\n{poll}{HEAD}\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        headers = {line.partition(": ")[0].lower(): line.partition(": ")[2] for line in lines}
        self.bytes += len(head)
        if first.split()[1] == "304":
            return
        if first.split()[1] != "200":
            raise SystemExit(f"a viewer was refused: {head}")
        body = await reader.readexactly(int(headers["content-length"]))
        self.bytes += len(body)
        self.pieces += body.count(b"hx-swap-oob")
        self._known = headers["etag"]


@asynccontextmanager
async def looking(port: int, number: int) -> AsyncIterator[list[Viewer]]:
    """So many viewers, who came one after another."""
    viewers = [Viewer() for _ in range(number)]
    tasks = []
    for viewer in viewers:
        tasks.append(asyncio.create_task(viewer.look(port)))
        await asyncio.sleep(EVERY_S / number)
    try:
        yield viewers
    finally:
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()


@asynccontextmanager
async def news(port: int, fleet: Fleet) -> AsyncIterator[None]:
    """Have a spare node join and leave meanwhile."""
    path = f"/v1{GROUP}/nodes/spare"

    async def go_on() -> None:
        caller = await Caller.open(port)
        for number in count():
            offer = {**fleet.nodes[0].offer(), "incarnation": f"spare-{number}"}
            leave = request("DELETE", f"{path}?incarnation=spare-{number}")
            for change in (request("PUT", path, offer), leave):
                status, body = await caller.call(change)
                assert status < 300, body
                await asyncio.sleep(NEWS_S)

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        if task.done():
            task.result()
        task.cancel()


async def _window(fleet: Fleet, server: Process, viewers: list[Viewer], seconds: float) -> Window:
    first = fleet.nodes[0]
    seconds = max(seconds, first.poll_s)  # each node polls once: they do so in bunches
    probe = request("GET", f"{first.path}/directive?incarnation={first.incarnation}")
    caller = await Caller.open(fleet.port)
    begun, cpu_s, polls = fleet.loop.time(), server.cpu_s, fleet.counts.polls
    sent, pieces = sum(one.bytes for one in viewers), sum(one.pieces for one in viewers)
    took = []
    while (passed_s := fleet.loop.time() - begun) < seconds:
        asked = fleet.loop.time()
        await caller.call(probe)
        took.append(fleet.loop.time() - asked)
        await asyncio.sleep(PROBE_S)
    caller.close()
    return Window(
        (server.cpu_s - cpu_s) / passed_s,
        (fleet.counts.polls - polls + len(took)) / passed_s,
        median(took),
        (sum(one.bytes for one in viewers) - sent) / passed_s,
        (sum(one.pieces for one in viewers) - pieces) / passed_s / max(len(viewers), 1),
    )


async def _measure(table: Table, options: argparse.Namespace) -> None:
    numbers = [0, *(int(text) for text in options.viewers.split(","))]
    with hetserver(options.nodes, options.store) as server:
        process = Process(server.pid)
        fleet = Fleet(server.port, plans("view", options.nodes, 1, lease_s=300), tells=True)
        if not await settled(fleet, "running"):
            raise SystemExit(f"{options.nodes} nodes do not run, lost {fleet.counts.lost}")
        await asyncio.sleep(max(SETTLE_S, fleet.nodes[0].poll_s))  # until all have told
        with fewer_pauses():
            await _rows(table, options, fleet, process, numbers, "")
            async with news(server.port, fleet):
                await _rows(table, options, fleet, process, numbers, ", with news")
        table.note(f"Lost: {fleet.counts.lost}; refused: {dict(fleet.counts.refused) or 'none'}.")
        await fleet.close()


async def _rows(
    table: Table, options: argparse.Namespace, fleet: Fleet, process: Process, numbers: list[int], more: str
) -> None:
    found: dict[int, list[Window]] = {number: [] for number in numbers}
    for _ in range(options.tries):
        for number in numbers:
            async with looking(fleet.port, number) as viewers:
                await asyncio.sleep(1.0)  # the page comes first, which is not what is measured
                found[number].append(await _window(fleet, process, viewers, options.seconds))
    without = median(one.cores for one in found[0])
    for number, windows in found.items():
        cores, polls, probe_s, sent, pieces = (median(column) for column in zip(*windows, strict=True))
        table.row(
            f"{number}{more}",
            f"{cores * 1000:.1f} ms",
            f"{(cores - without) * 1000:+.1f} ms" if number else "",
            f"{polls:.0f}",
            ms(probe_s),
            f"{pieces:.1f}" if number else "",
            f"{sent / max(number, 1) / 1000:.1f} KB" if number else "",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--viewers", default="50")
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a window")
    parser.add_argument("--store", default="sqlite")
    options = parser.parse_args()
    raise_file_limit(options.nodes + 300)
    table = Table(
        f"Viewers of the page of a group of {options.nodes} nodes ({options.tries} windows each, in turn)",
        *("viewers", "CPU per second", "beside none", "polls/s", "a poll took"),
        *("sent to each per second", "to each per second"),
    )
    asyncio.run(_measure(table, options))
    table.show()


if __name__ == "__main__":
    main()
