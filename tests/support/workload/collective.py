"""All-reduces without torch: ranks meet through torch's TCPStore, as with gloo, and add up over sockets.

For workers of tests that are not about torch (worker.py); it needs only the standard library, so a worker starts in
0.1 s. As with gloo, the settings come from the environment, the store is the one that the master's agent hosts for the
round, and when a rank is gone, the next all-reduce fails on all others. Rank 0 does the adding.
"""

import contextlib
import os
import socket
import struct
import time
from typing import Self

NUMBER = struct.Struct("=d")
LENGTH = struct.Struct("=Q")
RANK = struct.Struct("=I")

VALIDATE, SET, GET, WAIT = 0, 1, 3, 6
"""Request types of torch's TCPStore, one byte each."""

MAGIC = struct.pack("=BI", VALIDATE, 0x3C85F7CE)
"""The first bytes of a connection."""

GONE_S = 0.5
"""How long the others keep running after a rank is gone (seconds). torch takes about as long to unwind, so the rank
that failed first is also the first to have exited."""


class Store:
    """A client of torch's TCPStore with the few requests that ranks need to meet."""

    def __init__(self, address: str, port: int) -> None:
        self._socket = socket.create_connection((address, port))
        self._socket.sendall(MAGIC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def own_address(self) -> str:
        """The address by which this process reaches the store."""
        return str(self._socket.getsockname()[0])

    def set(self, key: str, value: bytes) -> None:
        """Store a value."""
        self._socket.sendall(bytes([SET]) + _key(key) + _sized(value))

    def get(self, key: str) -> bytes:
        """Wait for a value; returns it."""
        self._socket.sendall(bytes([WAIT]) + LENGTH.pack(1) + _key(key))
        receive(self._socket, 1)
        self._socket.sendall(bytes([GET]) + _key(key))
        (length,) = LENGTH.unpack(receive(self._socket, LENGTH.size))
        return receive(self._socket, length)


class Star:
    """A world in which every rank is connected to rank 0.

    Args:
        rank, world: this process's rank, and the world size.
        store: where rank 0 publishes its address.
        key: under which it does.
    """

    def __init__(self, rank: int, world: int, store: Store, key: str) -> None:
        self._peers: list[socket.socket] = []  # for rank 0 the others by rank, for others rank 0
        if rank == 0:
            self._peers = self._gather(world, store, key)
        else:
            address, _, port = store.get(key).decode().rpartition(" ")
            self._peers = [socket.create_connection((address, int(port)))]
            self._peers[0].sendall(RANK.pack(rank))
        for peer in self._peers:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._leads = rank == 0

    @classmethod
    def from_environment(cls) -> Self:
        """Meet the other ranks of this round."""
        env = os.environ
        with Store(env["MASTER_ADDR"], int(env["MASTER_PORT"])) as store:
            return cls(int(env["RANK"]), int(env["WORLD_SIZE"]), store, f"star/{env['HET_ROUND']}")

    @staticmethod
    def _gather(world: int, store: Store, key: str) -> list[socket.socket]:
        family = socket.AF_INET6 if ":" in store.own_address else socket.AF_INET
        with socket.create_server((store.own_address, 0), family=family) as listener:
            store.set(key, f"{store.own_address} {listener.getsockname()[1]}".encode())
            peers = [listener.accept()[0] for _ in range(world - 1)]
        return [peer for _, peer in sorted((RANK.unpack(receive(peer, RANK.size)), peer) for peer in peers)]

    def all_reduce(self, values: list[float]) -> list[float]:
        """The sums over all ranks.

        Raises:
            OSError: a rank is gone.
        """
        try:
            return self._exchange(values)
        except OSError:
            time.sleep(GONE_S)
            raise

    def _exchange(self, values: list[float]) -> list[float]:
        packed = b"".join(map(NUMBER.pack, values))
        if not self._leads:
            self._peers[0].sendall(packed)
            return _numbers(receive(self._peers[0], len(packed)))
        sums = list(values)
        for peer in self._peers:
            theirs = _numbers(receive(peer, len(packed)))
            sums = [one + other for one, other in zip(sums, theirs, strict=True)]
        for peer in self._peers:
            with contextlib.suppress(OSError):  # it is gone; the next receive fails
                peer.sendall(b"".join(map(NUMBER.pack, sums)))
        return sums

    def close(self) -> None:
        """Disconnect from the others."""
        for peer in self._peers:
            peer.close()


def receive(peer: socket.socket, length: int) -> bytes:
    """Receive exactly `length` bytes.

    Raises:
        ConnectionError: the other end is gone.
    """
    data = b""
    while len(data) < length:
        if not (chunk := peer.recv(length - len(data))):
            raise ConnectionError("a rank, or the store, is gone")
        data += chunk
    return data


def _key(name: str) -> bytes:
    return _sized(b"/" + name.encode())  # as torch's own client prefixes it


def _sized(data: bytes) -> bytes:
    return LENGTH.pack(len(data)) + data


def _numbers(data: bytes) -> list[float]:
    return [number for (number,) in NUMBER.iter_unpack(data)]
