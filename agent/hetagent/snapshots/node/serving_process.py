"""Serves a node's snapshots to the agents' workers of other nodes: a program of its own.

`serving.Serving` starts it as `python -I serving_process.py`, with a listening socket, and writes what it has to know
to its stdin: a JSON object in a line. It ends when that is closed. The key is passed by nothing else, since arguments
and environments are public.
"""

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import Awaitable, Callable
from hmac import compare_digest
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import web

IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that whoever signals all processes of a job means for the agent."""

CHUNK = 1 << 20
"""How much is read at once where the kernel cannot send a file by itself (bytes)."""

NAME = r"{name:shared\.bin|[0-9]{1,10}\.(?:bin|json|small)}"
"""The files that are served, of slots that hold a snapshot."""

Handler = Callable[["web.Request"], Awaitable["web.StreamResponse"]]


def app(folder: Path, key: str) -> "web.Application":
    """What answers requests.

    Args:
        folder: of the node's snapshots.
        key: whoever asks has to have it.
    """
    from aiohttp import web

    from hetagent.snapshots.node.exchange import slots

    expected = f"Bearer {key}".encode()

    @web.middleware
    async def gate(request: "web.Request", handler: Handler) -> "web.StreamResponse":
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not compare_digest(given, expected):
            raise web.HTTPUnauthorized(headers={"WWW-Authenticate": "Bearer"})
        return await handler(request)

    async def part(request: "web.Request") -> "web.StreamResponse":
        stamp = int(request.match_info["round"]), int(request.match_info["step"])
        for slot, known in slots(folder).items():
            path = folder / slot / request.match_info["name"]
            if (known.round, known.step) == stamp and _is_file(path):
                return web.FileResponse(path, chunk_size=CHUNK)
        raise web.HTTPNotFound(text="this node does not have that")

    made = web.Application(middlewares=[gate])
    made.router.add_get("/{round:[0-9]{1,16}}-{step:[0-9]{1,16}}/" + NAME, part)
    return made


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


async def serve(folder: Path, key: str, listener: socket) -> None:
    """Serve until cancelled."""
    from aiohttp import web

    runner = web.AppRunner(app(folder, key), access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


async def until_closed(told: dict[str, Any]) -> None:
    """Serve until stdin is closed."""
    loop, closed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), closed.set)
    serving = asyncio.create_task(serve(Path(told["folder"]), told["key"], socket(fileno=told["listener"])))
    ending = asyncio.create_task(closed.wait())
    await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()


def main() -> None:
    """Read what to serve, and serve it."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if text := sys.stdin.buffer.readline():
        told = json.loads(text)
        sys.path[:] = told["sys_path"]
        asyncio.run(until_closed(told))


if __name__ == "__main__":
    main()
