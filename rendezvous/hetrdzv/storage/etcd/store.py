"""A store on an etcd cluster, written by the leader only; a batch of any size is committed as one.

    {prefix}/leader            who leads, see election.py; bound to a lease
    {prefix}/meta              JSON: `v`, the clock, the id of the last commit, how many pieces of the log to apply
    {prefix}/records/{key}     a value, or the first piece of a large one; further pieces are {key}\\0{number}
    {prefix}/log/{number}      pieces of a batch that is too large for one transaction

Every transaction checks two things. The *leader key* is still the one that we made: nobody else has become leader
since, so a deposed leader writes nothing. *meta* is as our last commit left it: an attempt that got no answer cannot
take effect later, after others.

etcd takes 128 operations and 1.5 MiB per transaction. A larger batch is written into the log first; the transaction
that declares the log valid in meta is its commit; then the log is applied and removed. A load applies a valid log and
ignores any other, so half a batch is never seen.

An etcd without space refuses every write, but can be read: then a load writes nothing and applies the log in memory.
"""

import asyncio
import json
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from etcd3aio.kv import Compare, KVService, RequestOp, TxnRequest

from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage.base import Batch, NothingWritten, Snapshot
from hetrdzv.storage.etcd.client import Etcd, EtcdAway, EtcdRefused

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
    """Makes writes succeed only while we lead.

    Args:
        key: the leader key.
        revision: the revision at which we made it.

    Attributes:
        lost: set as soon as we know that we no longer lead.
    """

    def __init__(self, key: bytes, revision: int) -> None:
        self.key = key
        self.lost = asyncio.Event()
        self._revision = revision
        self.compare = KVService.txn_compare_create_revision(key, revision)

    def holds(self, leader: Any) -> bool:
        """Whether a key-value (or None) is our leader key."""
        return leader is not None and bool(leader.create_revision == self._revision)

    async def guard(self, work: Awaitable[T]) -> T:
        """Await some work, or give it up when we are deposed.

        Raises:
            Deposed: we were.
        """
        task, lost = asyncio.ensure_future(work), asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Deposed("this server no longer leads; ask the one that does")
            return task.result()
        finally:
            for waiting in (task, lost):
                waiting.cancel()


@dataclass(frozen=True, slots=True)
class _Head:
    """The state of meta after our last transaction.

    Attributes:
        revision: of the key.
        clock: the highest clock ever committed (seconds).
        log: how many pieces of a log are valid, and not yet applied.
        held: whether we wrote it, so that no earlier attempt of ours can still take effect.
    """

    revision: int
    clock: float
    log: int = 0
    held: bool = True


class EtcdStore:
    """Records on etcd, written by the leader only.

    Args:
        etcd: closed by its owner.
        fence: of the election that we won.
    """

    def __init__(self, etcd: Etcd, fence: Fence) -> None:
        self._etcd = etcd
        self._fence = fence
        self._turn = asyncio.Lock()
        self._begun: set[asyncio.Task[Any]] = set()
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
        if self._begun:
            await asyncio.wait(self._begun)

    async def _in_order(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run some work after everything asked for before; it continues if the caller is cancelled."""
        if self._closed:
            raise StorageError(f"the store on etcd ({self._etcd.access}) is closed; try again in a moment")

        async def run() -> T:
            async with self._turn:
                try:
                    return await work()
                except NothingWritten:
                    raise
                except BaseException:
                    self._head = None
                    raise

        task = asyncio.ensure_future(run())
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may be gone
        return await asyncio.shield(task)

    # -- reading ---------------------------------------------------------------------------------------------

    async def _load(self) -> Snapshot:
        log = await self._take_hold()
        content = await self._all_records()
        for operation in log:
            _do(operation, content)
        assert self._head is not None
        pieces_of: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for key in sorted(content):  # pieces in order
            name, *_ = key.removeprefix(self._records).split(b"\0")
            pieces_of[name].append(content[key])
        self._pieces = {name: len(values) for name, values in pieces_of.items() if len(values) > 1}
        records = {name.decode(): b"".join(values) for name, values in pieces_of.items()}
        return Snapshot(records, self._head.clock)

    async def _take_hold(self) -> list[RequestOp]:
        """Write meta again, so that no earlier attempt can still take effect, and apply a valid log.

        Returns:
            what of the log could not be applied, since etcd refuses writes; the next commit begins with it.
        """
        while True:
            stored = await self._read(self._meta_key)
            meta = _parse_meta(stored.value if stored is not None else None)
            revision = stored.mod_revision if stored is not None else 0
            self._head = _Head(revision, meta["clock"], meta["log"], held=False)
            log = await self._read_log(meta["log"])
            try:
                await self._finish(log)
            except _Overtaken:
                continue  # an earlier attempt of ours took effect just now
            except EtcdRefused:
                return log
            return []

    async def _finish(self, log: list[RequestOp]) -> None:
        """Make the state on etcd ours, if it is not, and apply its log."""
        assert self._head is not None
        if not self._head.held:
            await self._advance([], self._head.clock, self._head.log)
        if self._head.log:
            await self._apply(log)

    async def _all_records(self) -> dict[bytes, bytes]:
        """Every key below records/ with its value, as of one moment."""
        start, end = self._records, _end(self._records)
        content: dict[bytes, bytes] = {}
        revision, more = 0, True
        while more:
            page = await self._fence.guard(
                self._etcd.page(start, end, revision, PAGE, within_s=PATIENCE_S),
            )
            content |= {pair.key: pair.value for pair in page.kvs}
            revision = revision or page.header.revision
            more = page.more
            start = page.kvs[-1].key + b"\0" if page.kvs else end
        return content

    async def _read_log(self, pieces: int) -> list[RequestOp]:
        content = bytearray()
        for number in range(pieces):
            piece = await self._read(_log_key(self._log, number))
            if piece is None:
                raise StorageError(
                    f"the store on etcd ({self._etcd.access}) lacks a piece of a batch ({number + 1} of {pieces}): "
                    f"restore a backup of it, or name another prefix with --store"
                )
            content += piece.value
        return list(TxnRequest.FromString(bytes(content)).success)

    # -- writing ---------------------------------------------------------------------------------------------

    async def _commit(self, batch: Batch) -> None:
        if self._head is None:
            await self._load()
        assert self._head is not None
        try:
            await self._finish(await self._read_log(self._head.log))
            await self._write(batch)
        except EtcdRefused as error:
            pair = await self._read(self._meta_key)
            if (pair.mod_revision if pair is not None else 0) != self._head.revision:
                raise  # an etcd that runs out of space may refuse what it has written
            self._head = replace(self._head, held=False)
            raise NothingWritten(str(error)) from error

    async def _write(self, batch: Batch) -> None:
        assert self._head is not None
        pieces = dict(self._pieces)
        operations = list(self._operations(batch, pieces))
        clock = max(self._head.clock, batch.clock)
        if len(operations) < MAX_OPERATIONS and sum(op.ByteSize() for op in operations) <= MAX_BYTES:
            await self._advance(operations, clock)
        else:
            log = [*_cut(TxnRequest(success=operations).SerializeToString())]
            for number, piece in enumerate(log):
                put = KVService.txn_op_put(_log_key(self._log, number), piece)
                await self._txn([self._unmoved()], [put])
            await self._advance([], clock, len(log))
            with suppress(EtcdRefused):  # it is committed; the next commit applies it
                await self._apply(operations)
        self._pieces = pieces

    def _operations(self, batch: Batch, pieces: dict[bytes, int]) -> Iterator[RequestOp]:
        """The operations of a batch; keeps `pieces` up to date."""
        for key, value in batch.puts.items():
            if key in batch.deletes:
                continue
            name = _name(key)
            cut = [*_cut(value)]
            for number, piece in enumerate(cut):
                yield KVService.txn_op_put(self._record_key(name, number), piece)
            if pieces.pop(name, 1) > len(cut):
                yield self._delete_range(self._record_key(name, len(cut)), self._record_key(name) + b"\1")
            if len(cut) > 1:
                pieces[name] = len(cut)
        for key in batch.deletes:
            name = _name(key)
            yield KVService.txn_op_delete(self._record_key(name))
            if pieces.pop(name, 1) > 1:
                yield self._delete_range(self._record_key(name, 1), self._record_key(name) + b"\1")

    async def _apply(self, operations: Iterable[RequestOp]) -> None:
        """Apply a valid log, then remove it. Harmless if it was already applied, wholly or in part."""
        for part in _parts(operations):
            await self._txn([self._unmoved()], part)
        assert self._head is not None
        await self._advance([self._delete_range(self._log, _end(self._log))], self._head.clock)

    async def _advance(self, operations: list[RequestOp], clock: float, log: int = 0) -> None:
        """Run a transaction that is a commit: it writes meta.

        Raises:
            _Overtaken: meta has changed since our last transaction; nothing was written.
        """
        assert self._head is not None
        commit = secrets.token_hex(8)
        meta = json.dumps({"v": VERSION, "clock": clock, "commit": commit, "log": log}).encode()
        put = KVService.txn_op_put(self._meta_key, meta)
        look = [self._get(self._fence.key), self._get(self._meta_key)]
        reply = await self._sent([self._unmoved()], [*operations, put], look)
        revision = reply.header.revision
        if not reply.succeeded:
            leader, pair = (_only(response) for response in reply.responses)
            if pair is None or _parse_meta(pair.value)["commit"] != commit:
                self._require_fence(leader)
                raise _Overtaken("the state on etcd has changed and must be read again")
            revision = pair.mod_revision  # an earlier attempt that got no answer had done it
        self._head = _Head(revision, clock, log)

    async def _read(self, key: bytes) -> Any:
        """A key as it was while we led: the leader key is read after it and is never made twice.

        Not in one transaction: etcd 3.5.1 may panic when a transaction that only reads is cancelled.
        """
        try:
            pair, leader = [
                await self._fence.guard(self._etcd.get(name, within_s=PATIENCE_S))
                for name in (key, self._fence.key)
            ]
        except EtcdAway as error:
            raise EtcdAway(f"the state could not be stored or read: {error}") from error
        self._require_fence(leader)
        return pair

    async def _txn(self, compare: list[Compare], operations: list[RequestOp]) -> Any:
        """Run a transaction that is not a commit and may be repeated."""
        reply = await self._sent(compare, operations, [self._get(self._fence.key)])
        if not reply.succeeded:
            self._require_fence(_only(reply.responses[0]))
            raise _Overtaken("the state on etcd has changed and must be read again")
        return reply

    async def _sent(self, compare: list[Compare], success: list[RequestOp], failure: list[RequestOp]) -> Any:
        try:
            return await self._fence.guard(
                self._etcd.txn([self._fence.compare, *compare], success, failure, within_s=PATIENCE_S)
            )
        except EtcdAway as error:
            raise EtcdAway(f"the state could not be stored or read: {error}") from error

    def _require_fence(self, leader: Any) -> None:
        if not self._fence.holds(leader):
            self._fence.lost.set()
            raise Deposed("etcd refused a write: another server leads, or may lead; ask that one")

    # -- pieces of transactions ------------------------------------------------------------------------------

    def _unmoved(self) -> Compare:
        """Compares meta with what our last commit left; revision 0: it does not exist."""
        assert self._head is not None
        return Compare(
            result=Compare.EQUAL,
            target=Compare.MOD,
            key=self._meta_key,
            mod_revision=self._head.revision,
        )

    def _record_key(self, name: bytes, piece: int = 0) -> bytes:
        return self._records + name + (b"\0%06d" % piece if piece else b"")

    @staticmethod
    def _get(key: bytes) -> RequestOp:
        return KVService.txn_op_get(key)

    @staticmethod
    def _delete_range(start: bytes, end: bytes) -> RequestOp:
        return KVService.txn_op_delete(start, range_end=end)


class _Overtaken(StorageError):
    """meta has changed: by an attempt of ours that got no answer, or by hand."""


def _parse_meta(value: bytes | None) -> Mapping[str, Any]:
    if value is None:
        return {"clock": 0.0, "commit": "", "log": 0}
    try:
        meta = json.loads(value)
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


def _do(operation: RequestOp, content: dict[bytes, bytes]) -> None:
    """Do in memory what a put or a delete of ours does on etcd."""
    if operation.HasField("request_put"):
        content[operation.request_put.key] = operation.request_put.value
        return
    start, end = operation.request_delete_range.key, operation.request_delete_range.range_end
    gone = [key for key in content if start <= key < end] if end else [start]
    for key in gone:
        content.pop(key, None)


def _cut(value: bytes) -> Iterator[bytes]:
    """A value in pieces; an empty value is one piece."""
    for start in range(0, max(1, len(value)), PIECE_BYTES):
        yield value[start : start + PIECE_BYTES]


def _parts(operations: Iterable[RequestOp]) -> Iterator[list[RequestOp]]:
    """Operations in order, in parts that fit into one transaction each."""
    part: list[RequestOp] = []
    size = 0
    for operation in operations:
        more = operation.ByteSize()
        if part and (len(part) == MAX_OPERATIONS or size + more > MAX_BYTES):
            yield part
            part, size = [], 0
        part.append(operation)
        size += more
    if part:
        yield part


def _only(response: Any) -> Any:
    """The key-value found by a get within a transaction, or None."""
    pairs = response.response_range.kvs
    return pairs[0] if pairs else None


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
