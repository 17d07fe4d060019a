"""How fast a group comes together: from N joins sent at once until every node has its `start` directive.

    python -m benchmarks.rendezvous [--nodes 128,1000] [--tries 3] [--store sqlite|memory]

The floor is measured in the same run: as many bare `GET /healthz` over the same connections of the same
client. What counts is the ratio and the difference; this client and the server share the machine's cores.
CPU is the server's own, for one try.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import psutil
from rich.console import Console
from rich.table import Table
from tests.support.servers import ROOT, Hetserver, free_port


class Figures(NamedTuple):
    """What one try took (seconds): on the clock of the client, and of the server's CPU."""

    bare_s: float
    joined_s: float
    bare_cpu_s: float
    joined_cpu_s: float


class Connection(asyncio.Protocol):
    """A kept-alive HTTP connection that does as little as a client can."""

    def __init__(self) -> None:
        self._buffer = b""
        self._reply: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if not end or self._reply is None:
            return
        length = next(
            int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
        )
        if len(body) >= length:
            self._buffer = b""
            if not head.startswith(b"HTTP/1.1 200"):
                self._reply.set_exception(RuntimeError(self._text(head + b" " + body)))
            else:
                self._reply.set_result(body)

    def connection_lost(self, error: Exception | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ConnectionError("the server closed the connection"))

    @staticmethod
    def _text(data: bytes) -> str:
        return data.decode(errors="replace")

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Send a request and wait for its reply's body."""
        self._reply = asyncio.get_running_loop().create_future()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._transport.write(head.encode() + b"\r\n" + body)
        return await self._reply

    def close(self) -> None:
        self._transport.close()


async def _join(connection: Connection, group: str, number: int, nodes: int) -> None:
    """Join and poll until the node is told to start."""
    request = {
        "incarnation": f"i{number}",
        "slots": 8,
        "address": f"10.0.{number // 250}.{number % 250 + 1}",
        "port": 29500,
        "spec": {"min_nodes": nodes, "max_nodes": nodes, "lease_s": 60},
    }
    path = f"/v1/groups/{group}/nodes/gpu{number}"
    reply = json.loads(await connection.ask("PUT", f"{path}?wait=30", json.dumps(request).encode()))
    while reply["kind"] != "start":
        query = f"incarnation=i{number}&after={reply['version']}&wait=30"
        reply = json.loads(await connection.ask("GET", f"{path}/directive?{query}"))


async def _measure(server: psutil.Process, port: int, group: str, nodes: int) -> Figures:
    """N bare requests, then N joins until all have their start directive."""
    loop = asyncio.get_running_loop()
    opened = [loop.create_connection(Connection, "127.0.0.1", port) for _ in range(nodes)]
    connections = [connection for _, connection in await asyncio.gather(*opened)]
    try:
        cpu_s = _cpu_s(server)
        begun = time.perf_counter()
        await asyncio.gather(*(connection.ask("GET", "/healthz") for connection in connections))
        bare_s = time.perf_counter() - begun
        bare_cpu_s, cpu_s = _cpu_s(server) - cpu_s, _cpu_s(server)
        begun = time.perf_counter()
        await asyncio.gather(*(_join(c, group, n, nodes) for n, c in enumerate(connections)))
        joined_s = time.perf_counter() - begun
        return Figures(bare_s, joined_s, bare_cpu_s, _cpu_s(server) - cpu_s)
    finally:
        for connection in connections:
            connection.close()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _start_s(store: str) -> float:
    """Seconds from exec to the first answer of /readyz."""
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "hetrdzv.cli.hetserver", "--port", str(port), "--store", store]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "rendezvous"), "XDG_STATE_HOME": home}
        begun = time.perf_counter()
        server = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            return asyncio.run(_until_ready(port)) - begun
        finally:
            server.terminate()
            server.wait()


async def _until_ready(port: int) -> float:
    loop = asyncio.get_running_loop()
    while True:
        try:
            _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
            await connection.ask("GET", "/readyz")
        except OSError:
            await asyncio.sleep(0.005)
            continue
        connection.close()
        return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", default="2,32,128,1000", help="how many nodes join, one figure per line")
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--store", choices=["sqlite", "memory"], default="sqlite")
    arguments = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard) if hard > 0 else (soft, hard))
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        store = "memory" if arguments.store == "memory" else f"sqlite:{folder}/state.db"
        starts = [_start_s(f"{store}-start" if store != "memory" else store) for _ in range(arguments.tries)]
        table = Table(
            title=f"N joins at once until all have their start directive ({store.partition(':')[0]} store)"
        )
        for column in ("nodes", "N x GET /healthz", "N joins", "worst", "ratio", "CPU floor", "CPU joins"):
            table.add_column(column, justify="right")
        with Hetserver(store=store) as server:
            process = psutil.Process(server.pid)
            idle_mib = process.memory_info().rss / 2**20
            for nodes in (int(text) for text in arguments.nodes.split(",")):
                figures = [
                    asyncio.run(_measure(process, server.port, f"bench-{nodes}-{number}", nodes))
                    for number in range(arguments.tries)
                ]
                bare_s = statistics.median(figure.bare_s for figure in figures)
                joined_s = statistics.median(figure.joined_s for figure in figures)
                worst_s = max(figure.joined_s for figure in figures)
                bare_cpu_s = statistics.median(figure.bare_cpu_s for figure in figures)
                joined_cpu_s = statistics.median(figure.joined_cpu_s for figure in figures)
                table.add_row(
                    str(nodes),
                    f"{bare_s * 1000:.1f} ms",
                    f"{joined_s * 1000:.1f} ms",
                    f"{worst_s * 1000:.1f} ms",
                    f"{joined_s / bare_s:.1f}",
                    f"{bare_cpu_s * 1000:.0f} ms",
                    f"{joined_cpu_s * 1000:.0f} ms",
                )
            loaded_mib = process.memory_info().rss / 2**20
    console.print(table)
    console.print(
        f"start (exec to /readyz): median {statistics.median(starts):.2f} s, worst {max(starts):.2f} s; "
        f"resident: {idle_mib:.0f} MiB idle, {loaded_mib:.0f} MiB after all that "
        f"(medians of {arguments.tries} tries)"
    )


if __name__ == "__main__":
    main()
