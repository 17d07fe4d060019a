"""A store on an etcd cluster, written by the leader only; a batch of any size is committed as one.

    {prefix}/leader            who leads, see election.py; bound to a lease
    {prefix}/meta              JSON: `v`, the clock, the id of the last commit, how many pieces of the log to apply
    {prefix}/records/{key}     a value, or the first piece of a large one; further pieces are {key}\\0{number}
    {prefix}/log/{number}      pieces of a batch that is too large for one transaction

Every transaction checks two things. The *leader key* is still the one that we made: nobody else has become leader
since, so a deposed leader writes nothing. *meta* is as our last commit left it: an attempt that got no answer cannot
take effect later, after others.

etcd takes 128 operations and 1.5 MiB per transaction. A larger batch is written into the log first; the transaction
that declares the log valid in meta is its commit; then the log is applied and removed. Any other log counts for
nothing, so half a batch is never seen.

A load applies a valid log in memory, since an etcd without space refuses every write; the next commit applies it there.
"""

import asyncio
import json
import secrets
from base64 import b64decode
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage.base import Batch, NothingWritten, Snapshot
from hetrdzv.storage.etcd.client import (
    Etcd,
    EtcdAway,
    EtcdRefused,
    KeyValue,
    Operation,
    TxnReply,
    created_at,
    delete,
    get,
    put,
    written_at,
)

VERSION = 1

MAX_OPERATIONS = 128
"""The default of etcd's `--max-txn-ops`."""

MAX_BYTES = 1 << 20
"""How much we put into one transaction (bytes), well below the default of etcd's `--max-request-bytes`, 1.5 MiB."""

PIECE_BYTES = 1 << 19
"""Size of the pieces that values and logs are cut into (bytes)."""

PAGE = 2_000
"""How many keys are read at a time."""

PATIENCE_S = 10.0
"""How long to try a transaction while no member answers (seconds); a leader's lease ends long before."""

T = TypeVar("T")


class Deposed(StorageError):
    """Another server leads, or may lead: nothing was written."""


class Fence:
    """Makes writes succeed only while we lead: while the leader key is the one that we made at `revision`.

    Attributes:
        lost: set as soon as we know that we no longer lead.
    """

    def __init__(self, key: bytes, revision: int) -> None:
        self.key = key
        self.lost = asyncio.Event()
        self._revision = revision
        self.compare = created_at(key, revision)

    def require(self, leader: KeyValue | None) -> None:
        """Check that this is our leader key.

        Raises:
            Deposed: it is not.
        """
        if leader is None or leader.create_revision != self._revision:
            self.lost.set()
            raise Deposed("etcd refused a write: another server leads, or may lead; ask that one")

    async def guard(self, work: Awaitable[T]) -> T:
        """Await some work, or give it up with `Deposed` when we are."""
        task, lost = asyncio.ensure_future(work), asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Deposed("this server no longer leads; ask the one that does")
            return task.result()
        finally:
            for waiting in (task, lost):
                waiting.cancel()


class _Head(NamedTuple):
    """meta as our last transaction left it: its revision (0: there is none), and its content (see `_parse_meta`)."""

    revision: int
    clock: float
    log: int


class EtcdStore:
    """Records on etcd, written by the leader only: `fence` is of the election that we won."""

    def __init__(self, etcd: Etcd, fence: Fence) -> None:
        self._etcd = etcd
        self._fence = fence
        self._turn = asyncio.Lock()
        self._closed = False
        self._head: _Head | None = None  # None: the outcome of the last transaction is unknown
        self._pieces: dict[bytes, int] = {}  # number of pieces of values that have several
        self._meta_key, self._log = etcd.key("meta"), etcd.key("log/")
        self._records = etcd.key("records/")

    async def load(self) -> Snapshot:
        return await self._in_order(self._load)

    async def commit(self, batch: Batch) -> None:
        await self._in_order(partial(self._commit, batch))

    async def close(self) -> None:
        self._closed = True
        async with self._turn:
            pass  # what was asked for before is done

    async def _in_order(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run some work after everything asked for before."""
        if self._closed:
            raise StorageError(f"the store on etcd ({self._etcd.access}) is closed; try again in a moment")
        async with self._turn:
            try:
                return await work()
            except NothingWritten:
                raise
            except BaseException:
                self._head = None
                raise

    # -- reading ---------------------------------------------------------------------------------------------

    async def _load(self) -> Snapshot:
        await self._claim_meta()
        content = await self._all_records()
        for operation in await self._read_log():
            _do(operation, content)
        assert self._head is not None
        pieces_of: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for key in sorted(content):  # pieces in order
            name, *_ = key.removeprefix(self._records).split(b"\0")
            pieces_of[name].append(content[key])
        self._pieces = {name: len(values) for name, values in pieces_of.items() if len(values) > 1}
        records = {name.decode(): b"".join(values) for name, values in pieces_of.items()}
        return Snapshot(records, self._head.clock)

    async def _claim_meta(self) -> None:
        """Read meta, and write it again, so that no earlier attempt can still take effect."""
        while True:
            stored = await self._read(self._meta_key)
            meta = _parse_meta(stored)
            self._head = _Head(stored.mod_revision if stored is not None else 0, meta["clock"], meta["log"])
            try:
                await self._advance([], self._head.clock, self._head.log)
            except _MetaConflict:
                continue  # an earlier attempt of ours took effect just now
            except EtcdRefused:
                pass  # it has no space, but can be read; if that attempt comes, the next commit fails
            return

    async def _all_records(self) -> dict[bytes, bytes]:
        """Every key below records/ with its value, as of one moment."""
        start, end = self._records, _end(self._records)
        content: dict[bytes, bytes] = {}
        revision, more = 0, True
        while more:
            page = self._etcd.page(start, end, revision, PAGE, within_s=PATIENCE_S)
            pairs, revision, more = await self._fence.guard(page)
            content |= {pair.key: pair.value for pair in pairs}
            start = pairs[-1].key + b"\0" if pairs else end
        return content

    async def _read_log(self) -> list[Operation]:
        """The operations of the valid log; none if there is no log."""
        assert self._head is not None
        content, pieces = bytearray(b"" if self._head.log else b"[]"), self._head.log
        for number in range(pieces):
            piece = await self._read(_log_key(self._log, number))
            if piece is None:
                raise StorageError(
                    f"the store on etcd ({self._etcd.access}) lacks a piece of a batch ({number + 1} of {pieces}): "
                    f"restore a backup of it, or name another prefix with --store"
                )
            content += piece.value
        operations: list[Operation] = json.loads(content)
        return operations

    # -- writing ---------------------------------------------------------------------------------------------

    async def _commit(self, batch: Batch) -> None:
        if self._head is None:
            await self._load()
        assert self._head is not None
        try:
            if self._head.log:
                await self._apply(await self._read_log())
            await self._write(batch)
        except EtcdRefused as error:
            pair = await self._read(self._meta_key)
            if (pair.mod_revision if pair is not None else 0) != self._head.revision:
                raise  # an etcd that runs out of space may refuse what it has written
            raise NothingWritten(str(error)) from error

    async def _write(self, batch: Batch) -> None:
        assert self._head is not None
        pieces = dict(self._pieces)
        operations = list(self._operations(batch, pieces))
        clock = max(self._head.clock, batch.clock)
        if len(operations) < MAX_OPERATIONS and sum(map(_size, operations)) <= MAX_BYTES:
            await self._advance(operations, clock)
        else:
            await self._advance([], self._head.clock)  # no piece of an earlier attempt can still come
            log = [*_cut(json.dumps(operations).encode())]
            for number, piece in enumerate(log):
                await self._txn([put(_log_key(self._log, number), piece)])
            await self._advance([], clock, len(log))
            with suppress(EtcdRefused):  # it is committed; the next commit applies it
                await self._apply(operations)
        self._pieces = pieces

    def _operations(self, batch: Batch, pieces: dict[bytes, int]) -> Iterator[Operation]:
        """The operations of a batch; keeps `pieces` up to date."""
        values = {**batch.puts, **dict.fromkeys(batch.deletes)}
        for key, value in values.items():
            name = _name(key)
            cut = [] if value is None else [*_cut(value)]
            for number, piece in enumerate(cut):
                yield put(self._record_key(name, number), piece)
            if value is None:
                yield delete(self._record_key(name))
            if pieces.pop(name, 1) > max(1, len(cut)):
                yield delete(self._record_key(name, max(1, len(cut))), self._record_key(name) + b"\1")
            if len(cut) > 1:
                pieces[name] = len(cut)

    async def _apply(self, operations: Iterable[Operation]) -> None:
        """Apply a valid log, then remove it. Harmless if it was already applied, wholly or in part."""
        for part in _parts(operations):
            await self._txn(part)
        assert self._head is not None
        await self._advance([delete(self._log, _end(self._log))], self._head.clock)

    async def _advance(self, operations: list[Operation], clock: float, log: int = 0) -> None:
        """Run a transaction that is a commit: it writes meta.

        Raises:
            _MetaConflict: meta has changed since our last transaction; nothing was written.
        """
        commit = secrets.token_hex(8)
        meta = json.dumps({"v": VERSION, "clock": clock, "commit": commit, "log": log}).encode()
        reply = await self._sent([*operations, put(self._meta_key, meta)])
        revision = reply.revision
        if not reply.succeeded:
            leader, pair = reply.found
            if pair is None or _parse_meta(pair)["commit"] != commit:
                self._fence.require(leader)
                raise _MetaConflict("the state on etcd has changed and must be read again")
            revision = pair.mod_revision  # an earlier attempt that got no answer had done it
        self._head = _Head(revision, clock, log)

    async def _txn(self, operations: list[Operation]) -> None:
        """Run a transaction that is not a commit and may be repeated."""
        reply = await self._sent(operations)
        if not reply.succeeded:
            self._fence.require(reply.found[0])
            raise _MetaConflict("the state on etcd has changed and must be read again")

    async def _sent(self, operations: list[Operation]) -> TxnReply:
        """Run a transaction if we lead and meta is as our last one left it, else find the leader key and meta."""
        assert self._head is not None
        compare = [self._fence.compare, written_at(self._meta_key, self._head.revision)]
        look = [get(self._fence.key), get(self._meta_key)]
        with _explaining():
            return await self._fence.guard(self._etcd.txn(compare, operations, look, within_s=PATIENCE_S))

    async def _read(self, key: bytes) -> KeyValue | None:
        """A key as it was while we led: the leader key is read after it and is never made twice.

        Not in one transaction: etcd 3.5.1 may panic when a transaction that only reads is cancelled.
        """
        with _explaining():
            pair, leader = [
                await self._fence.guard(self._etcd.get(name, within_s=PATIENCE_S))
                for name in (key, self._fence.key)
            ]
        self._fence.require(leader)
        return pair

    def _record_key(self, name: bytes, piece: int = 0) -> bytes:
        return self._records + name + (b"\0%06d" % piece if piece else b"")


class _MetaConflict(StorageError):
    """meta has changed: by an attempt of ours that got no answer, or by hand."""


@contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except EtcdAway as error:
        raise EtcdAway(f"the state could not be stored or read: {error}") from error


def _parse_meta(pair: KeyValue | None) -> Mapping[str, Any]:
    """The highest clock ever committed (seconds), by which commit, and how many pieces of the log are to be applied."""
    if pair is None:
        return {"clock": 0.0, "commit": "", "log": 0}
    try:
        meta = json.loads(pair.value)
        version, clock, log = int(meta["v"]), float(meta["clock"]), int(meta["log"])
    except (ValueError, KeyError, TypeError):
        raise StorageError(
            "the key 'meta' on etcd does not belong to hetserver: name another prefix with --store"
        ) from None
    if version > VERSION:
        raise StorageError(
            f"the store on etcd has version {version}, but this hetserver reads at most version {VERSION}: "
            f"upgrade hetserver, or name another prefix with --store"
        )
    return {"clock": clock, "commit": meta.get("commit"), "log": log}


def _do(operation: Operation, content: dict[bytes, bytes]) -> None:
    """Do in memory what a put or a delete of ours does on etcd."""
    if (written := operation.get("request_put")) is not None:
        content[b64decode(written["key"])] = b64decode(written["value"])
        return
    removed = operation["request_delete_range"]
    start, end = b64decode(removed["key"]), b64decode(removed["range_end"])
    for key in [key for key in content if key == start or start <= key < end]:
        del content[key]


def _cut(value: bytes) -> Iterator[bytes]:
    """A value in pieces; an empty value is one piece."""
    for start in range(0, max(1, len(value)), PIECE_BYTES):
        yield value[start : start + PIECE_BYTES]


def _size(operation: Operation) -> int:
    """Of an operation in etcd's own form, at most (bytes)."""
    return sum(len(part["key"]) + len(part.get("value", "")) for part in operation.values())


def _parts(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """Operations in order, in parts that fit into one transaction each."""
    part: list[Operation] = []
    size = 0
    for operation in operations:
        more = _size(operation)
        if part and (len(part) == MAX_OPERATIONS or size + more > MAX_BYTES):
            yield part
            part, size = [], 0
        part.append(operation)
        size += more
    if part:
        yield part


def _name(key: str) -> bytes:
    name = key.encode()
    if b"\0" in name:
        raise StorageError(f"key {key!r} contains a null byte, which a store on etcd cannot hold")
    return name


def _log_key(log: bytes, number: int) -> bytes:
    return log + b"%06d" % number


def _end(prefix: bytes) -> bytes:
    """The end of the range of all keys with a given prefix, which ends with a slash."""
    return prefix[:-1] + b"0"
