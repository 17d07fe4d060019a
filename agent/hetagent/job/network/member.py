"""A node's part in the check: does what the master of the round says, and tells it what it measured.

Everything is said in lines of JSON. A connection begins with one that says what it is for: `hello`, to the master, or
`data`, to another node. All connections go to the port that a node offers to scripts, which nothing uses before them.
"""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hetagent.job.network.transfer import receive, send
from hetrdzv.protocol import codec
from hetrdzv.protocol.rooms.network import NetworkFound, Spread
from hetrdzv.protocol.texts.ids import is_id

VERSION = 1
MOST_BYTES = 1 << 14
"""The longest line."""

ANSWER_S = 12.0
"""How long the master may take to say that it takes part (seconds): it may get its `start` a little later."""

HANG_UP_S = 1.0
"""How long what was said last may take to be sent (seconds)."""

CONNECT_S = 3.0
"""How long a connection to another node may take (seconds)."""


@dataclass(frozen=True, slots=True)
class Me:
    """Who this node is in the round.

    Attributes:
        fresh: it has taken part in no check yet.
    """

    group: str
    round: int
    node_id: str
    rank: int
    address: str
    port: int
    fresh: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a check has found.

    Attributes:
        spread: how fast neighbours are; None: nothing was measured.
        found: which nodes or ways are slow, or why nobody knows.
        again: whether a later round, with nodes that are new to it, is to be checked: all nodes take part.
    """

    spread: Spread | None = None
    found: NetworkFound = field(default_factory=NetworkFound)
    again: bool = True


Message = Mapping[str, Any]
OnHello = Callable[[Message, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def take_part(me: Me, master: tuple[str, int], listener: socket.socket, patience_s: float) -> Result:
    """Join the check of a round and do what its master says.

    Args:
        master: where it listens.
        listener: of this node.
        patience_s: how long the master may be silent, once it has answered (seconds).

    Raises:
        OSError, ValueError: the master cannot be reached, goes away, or talks nonsense.
    """
    served: asyncio.Queue[Message] = asyncio.Queue()
    accepting = asyncio.create_task(accept(listener, served.put_nowait, None))
    try:
        return await converse(me, master, served, patience_s)
    finally:
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)


async def converse(
    me: Me, master: tuple[str, int], served: "asyncio.Queue[Message]", patience_s: float
) -> Result:
    """The same for a node that accepts connections elsewhere, and gets there what it received: `served`."""
    async with asyncio.timeout(CONNECT_S):
        reader, writer = await asyncio.open_connection(sock=await _connected(master), limit=MOST_BYTES)
    tasks: list[asyncio.Task[None]] = []

    async def pass_on() -> None:
        while True:
            await say(writer, await served.get())

    async def dial(order: Message) -> None:
        await say(writer, {"key": order["key"], "end": "dial", **await _dial(order)})

    try:
        hello = {
            "hetrdzv": "hello",
            "version": VERSION,
            "group": me.group,
            "round": me.round,
            "rank": me.rank,
        }
        hello |= {"node": me.node_id, "address": me.address, "port": me.port, "fresh": me.fresh}
        await say(writer, hello)
        tasks.append(asyncio.create_task(pass_on()))
        silent_s = ANSWER_S
        while True:
            async with asyncio.timeout(silent_s):
                order = await hear(reader)
            silent_s = patience_s
            match order.get("do"):
                case "dial":
                    tasks.append(asyncio.create_task(dial(order)))
                case "end":
                    return _result(order)
    finally:
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:  # the check may be cancelled here, too
            await hang_up(writer)


def _result(order: Message) -> Result:
    """What the master says was found."""
    try:
        return codec.checked(Result, order.get("result"), unknown="ignore")
    except codec.Malformed:  # whose text may have what was said in it, and that may be anything
        raise ValueError("its result makes no sense") from None


async def _dial(order: Message) -> Message:
    """Measure both directions to another node; `rate` is what came in here, None if nothing did."""
    place = str(order["address"]), int(order["port"])
    try:
        for to_other in (True, False):
            async with asyncio.timeout(CONNECT_S):
                sock = await _opened(place, {"hetrdzv": "data", "key": order["key"], "to_you": to_other})
            if to_other:
                await send(sock)
            else:
                return {"rate": await receive(sock)}
    except (OSError, ValueError) as error:
        return {"rate": None, "why": str(error)[:200]}
    raise AssertionError("the second direction ends with a rate or an error")


async def _opened(place: tuple[str, int], first: Message) -> socket.socket:
    loop = asyncio.get_running_loop()
    sock = await _connected(place)
    try:
        await loop.sock_sendall(sock, _line(first))
        await loop.sock_recv(sock, 1)  # it has read that, so what follows is data
    except BaseException:
        sock.close()
        raise
    return sock


async def _connected(place: tuple[str, int]) -> socket.socket:
    """Connect to the first address of a name that answers."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    for family, kind, protocol, _, where in await _looked_up(*place):
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, where)
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError):
                raise
            failure = error
        else:
            return sock
    assert failure is not None, "a name that can be looked up has an address"
    raise failure


async def _looked_up(host: str, port: int) -> list[Any]:
    """What `getaddrinfo` finds, in a thread that nobody waits for: a dead resolver may hold it up for minutes.

    asyncio would run it in a thread that is waited for when the loop is closed, and again when the process ends.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Any]] = loop.create_future()

    def settle(places: list[Any], error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(places)

    def look_up() -> None:
        places: list[Any] = []
        problem: Exception | None = None
        try:
            places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            problem = error
        with contextlib.suppress(RuntimeError):  # the check was over long ago
            loop.call_soon_threadsafe(settle, places, problem)

    threading.Thread(target=look_up, name="hetagent-look-up", daemon=True).start()
    return await answer


async def accept(
    listener: socket.socket, served: Callable[[Message], None], on_hello: OnHello | None
) -> None:
    """Answer what connects to this node until cancelled.

    Args:
        served: gets what was received over a `data` connection.
        on_hello: gets `hello` connections; None: this node is not the master.
    """
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    listener.setblocking(False)

    def come() -> None:  # not sock_accept: what it has accepted when it is cancelled is never closed
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no descriptors are left: others will not reach this node
            loop.remove_reader(listener)
            return
        task = asyncio.create_task(_answer(sock, served, on_hello))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(
            lambda _: sock.close()
        )  # one that is cancelled before it begins closes nothing

    loop.add_reader(listener, come)
    try:
        await asyncio.Future()
    finally:
        loop.remove_reader(listener)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answer(sock: socket.socket, served: Callable[[Message], None], on_hello: OnHello | None) -> None:
    loop = asyncio.get_running_loop()
    sock.setblocking(False)
    with contextlib.suppress(OSError, ValueError):  # a stranger, or a peer that gave up
        async with asyncio.timeout(CONNECT_S):
            text = b""
            while not text.endswith(b"\n") and len(text) < MOST_BYTES:
                if not (byte := await loop.sock_recv(sock, 1)):
                    return
                text += byte
        first = _parsed(text)
        if first.get("hetrdzv") == "data":
            await loop.sock_sendall(sock, b"!")
            if first.get("to_you"):
                served({"key": first.get("key"), "end": "serve", "rate": await receive(sock)})
            else:
                await send(sock)
        elif first.get("hetrdzv") == "hello" and on_hello is not None:
            reader, writer = await asyncio.open_connection(sock=sock.dup(), limit=MOST_BYTES)
            try:
                await on_hello(first, reader, writer)
            finally:
                await hang_up(writer)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close a connection once everything that was said on it is sent, or cannot be; at once where it is cancelled."""
    writer.close()
    task = asyncio.current_task()
    try:
        if task is not None and task.cancelling():
            return
        with contextlib.suppress(OSError):
            async with asyncio.timeout(HANG_UP_S):
                await writer.wait_closed()
    finally:
        writer.transport.abort()  # does nothing more where it is closed
        await asyncio.sleep(0)


async def say(writer: asyncio.StreamWriter, message: Message) -> None:
    """Send a line."""
    writer.write(_line(message))
    await writer.drain()


async def hear(reader: asyncio.StreamReader) -> Message:
    """The next line.

    Raises:
        OSError: there is none.
        ValueError: it makes no sense.
    """
    text = await reader.readline()
    if not text:
        raise ConnectionError("the other end has closed the connection")
    return _parsed(text)


def _line(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _parsed(text: bytes) -> Message:
    try:
        message = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("not an object")
    return message


def sender(hello: Message, group: str, number: int) -> tuple[int, str, str, int, bool] | None:
    """Rank, node id, address, port and `fresh` of a node that says hello; None: to another round, or nonsense."""
    rank, port, node_id = hello.get("rank"), hello.get("port"), hello.get("node")
    if (hello.get("version"), hello.get("group"), hello.get("round")) != (VERSION, group, number):
        return None
    if not (isinstance(rank, int) and isinstance(port, int) and isinstance(node_id, str) and is_id(node_id)):
        return None
    return rank, node_id, str(hello.get("address"))[:253], port, hello.get("fresh") is True
