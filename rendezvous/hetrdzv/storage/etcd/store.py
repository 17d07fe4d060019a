"""A store on an etcd cluster, written by the leader only; a batch of any size is committed as one.

    {prefix}/leader            who leads, see election.py; bound to a lease
    {prefix}/meta              JSON: `v`, the clock, the id of the last transaction, how many parts of the log to apply
    {prefix}/records/{key}     a value, or the first piece of a large one; further pieces are {key}\\0{offset}
    {prefix}/log/{number}      parts of a batch that is too large for one transaction

Every transaction writes meta, and checks two things. The *leader key* is still the one that we made: nobody else has
become leader since, so a deposed leader writes nothing. *meta* is as our last transaction left it: an attempt that got
no answer cannot take effect later, after others.

etcd takes 128 operations and 1.5 MiB per transaction. A larger batch is written into the log first, in parts that fit;
the transaction that declares the log valid in meta is its commit; then the log is applied and removed. Any other log
counts for nothing, so half a batch is never seen.

A load applies a valid log in memory, since an etcd without space refuses every write; the next commit applies it there.
"""

import asyncio
import secrets
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from pydantic import Base64UrlBytes

from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage.base import Batch, NothingWritten, Snapshot
from hetrdzv.storage.etcd.client import (
    Etcd,
    EtcdRefused,
    KeyValue,
    Operation,
    compare_mod_revision,
    delete,
    get,
    put,
)
from hetrdzv.storage.etcd.election import Term

VERSION = 1

MAX_OPERATIONS = 127
"""The default of etcd's `--max-txn-ops`, less one for meta."""

MAX_BYTES = 1 << 20
"""How much we put into one transaction (bytes), well below the default of etcd's `--max-request-bytes`, 1.5 MiB."""

LARGE = 1 << 16
"""Longer values are compressed (bytes): the members of a round of thousands are alike."""

PIECE = 1 << 19
"""Values that are longer when compressed are cut into pieces of this size (bytes)."""

PAGE = 2_000
"""How many keys are read at a time."""

PATIENCE_S = 10.0
"""How long to try a transaction while no member answers (seconds); a leader's lease ends long before."""

T = TypeVar("T")

Part = list[tuple[str, Base64UrlBytes | None]]
"""Some of a batch: keys with their packed values, or pieces of them; None: deleted."""


class _MetaConflict(StorageError):
    """meta has changed: by an attempt of ours that got no answer, or by hand."""


@dataclass(frozen=True, slots=True)
class _Meta:
    """meta as our last transaction left it."""

    v: int
    clock: float = 0.0  # the highest ever committed (seconds)
    commit: str = ""  # the id of the transaction that wrote it
    log: int = 0  # how many parts of the log are to be applied
    revision: int = 0  # at which it was written, which is not in it; 0: there is none

    @classmethod
    def parse(cls, pair: KeyValue | None) -> "_Meta":
        if pair is None:
            return cls(VERSION)
        try:
            meta = codec.read(cls, pair.value, unknown="ignore")
        except codec.Malformed:
            raise StorageError(
                "the key 'meta' on etcd does not belong to hetserver: name another prefix with --store"
            ) from None
        if meta.v > VERSION:
            raise StorageError(
                f"the store on etcd has version {meta.v}, but this hetserver reads at most version {VERSION}: "
                f"upgrade hetserver, or name another prefix with --store"
            )
        return replace(meta, revision=pair.mod_revision)


class EtcdStore:
    """Records on etcd, written by the leader only: `term` is of the election that we won."""

    def __init__(self, etcd: Etcd, term: Term) -> None:
        self._etcd = etcd
        self._term = term
        self._turn = asyncio.Lock()
        self._closed = False
        self._meta: _Meta | None = None  # None: the outcome of the last transaction is unknown
        self._meta_key, self._log, self._records = (etcd.key(name) for name in ("meta", "log/", "records/"))

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
                self._meta = None
                raise

    # -- reading ---------------------------------------------------------------------------------------------

    async def _load(self) -> Snapshot:
        meta = await self._claim_meta()
        content = await self._all_records()
        for part in await self._read_log(meta):
            content.update(part)
        pieces: dict[str, list[bytes]] = {}
        for key, piece in sorted(content.items()):
            name = key.partition("\0")[0]
            if piece is not None and (key == name or name in pieces):
                pieces.setdefault(name, []).append(piece)
        return Snapshot({name: _unpacked(found) for name, found in pieces.items()}, meta.clock)

    async def _claim_meta(self) -> _Meta:
        """Read meta, and write it again, so that no earlier attempt can still take effect."""
        while True:
            self._meta = meta = _Meta.parse(await self._read(self._meta_key))
            try:
                return await self._send([], log=meta.log)
            except _MetaConflict:
                continue  # an earlier attempt of ours took effect just now
            except EtcdRefused:
                return meta  # it has no space, but can be read; if that attempt comes, the next commit fails

    async def _all_records(self) -> dict[str, bytes | None]:
        """Every key below records/ with its packed value, as of one moment."""
        start, content = self._records, dict[str, bytes | None]()
        revision, more = 0, True
        while more:
            page = self._etcd.page(start, _end(self._records), revision, PAGE, within_s=PATIENCE_S)
            pairs, revision, more = await self._term.guard(page)
            for pair in pairs:  # a key that is no text is not ours either, and is refused by name
                content[pair.key.removeprefix(self._records).decode(errors="backslashreplace")] = pair.value
                start = pair.key + b"\0"
        return content

    async def _read_log(self, meta: _Meta) -> list[Part]:
        """The parts of the valid log; none if there is no log."""
        parts: list[Part] = []
        for number in range(meta.log):
            pair = await self._read(self._log_key(number))
            try:
                parts.append(codec.read(Part, pair.value if pair is not None else b""))
            except codec.Malformed:
                raise StorageError(
                    f"the store on etcd ({self._etcd.access}) lacks a part of a batch ({number + 1} of {meta.log}): "
                    f"restore a backup of it, or name another prefix with --store"
                ) from None
        return parts

    # -- writing ---------------------------------------------------------------------------------------------

    async def _commit(self, batch: Batch) -> None:
        meta = self._meta or await self._claim_meta()
        try:
            if meta.log:
                await self._apply(await self._read_log(meta))
            await self._write(_parts(batch), batch.clock)
        except EtcdRefused as error:
            written = _Meta.parse(await self._read(self._meta_key))
            if self._meta is None or written.revision != self._meta.revision:
                raise  # an etcd that runs out of space may refuse what it has written
            raise NothingWritten(str(error)) from error

    async def _write(self, parts: Sequence[Part], clock: float) -> None:
        if len(parts) == 1:
            await self._send(_operations(self._records, parts[0]), clock)
            return
        # this shows that etcd takes as many operations as applying a part will need
        await self._send([delete(self._log_key(number)) for number in range(MAX_OPERATIONS)])
        for number, part in enumerate(parts):
            await self._send([put(self._log_key(number), codec.adapter(Part).dump_json(part))])
        await self._send([], clock, log=len(parts))
        with suppress(EtcdRefused):  # it is committed; the next commit applies it
            await self._apply(parts)

    async def _apply(self, parts: Sequence[Part]) -> None:
        """Apply a valid log, then remove it. Harmless if it was already applied, wholly or in part."""
        for part in parts:
            await self._send(_operations(self._records, part), log=len(parts))
        await self._send([delete(self._log, _end(self._log))])

    def _log_key(self, number: int) -> bytes:
        return self._log + b"%06d" % number

    async def _send(self, operations: list[Operation], clock: float = 0.0, log: int = 0) -> _Meta:
        """Run a transaction, which writes meta too, if we lead and meta is as our last one left it."""
        assert self._meta is not None
        written = replace(
            self._meta, clock=max(clock, self._meta.clock), commit=secrets.token_hex(8), log=log
        )
        writes = [*operations, put(self._meta_key, codec.write(written, without={"revision"}))]
        compare = [self._term.compare, compare_mod_revision(self._meta_key, self._meta.revision)]
        look = [get(self._term.key), get(self._meta_key)]
        reply = await self._term.guard(self._etcd.txn(compare, writes, look, within_s=PATIENCE_S))
        revision = reply.revision
        if not reply.succeeded:
            leader, found = reply.found
            meta = _Meta.parse(found)
            if meta.commit != written.commit:  # else an attempt that got no answer has done it
                self._term.require(leader)
                raise _MetaConflict("the state on etcd has changed and must be read again")
            revision = meta.revision
        self._meta = replace(written, revision=revision)
        return self._meta

    async def _read(self, key: bytes) -> KeyValue | None:
        """A key as it was while we led: the leader key is read after it and is never made twice.

        Not in one transaction: etcd 3.5.1 may panic when a transaction that only reads is cancelled.
        """
        pair, leader = [
            await self._term.guard(self._etcd.get(name, within_s=PATIENCE_S))
            for name in (key, self._term.key)
        ]
        self._term.require(leader)
        return pair


def _operations(records: bytes, part: Part) -> list[Operation]:
    """What applies a part to the keys below `records`."""
    keys = [(records + name.encode(), value) for name, value in part]
    return [delete(key, key + b"\1") if value is None else put(key, value) for key, value in keys]


def _parts(batch: Batch) -> Sequence[Part]:
    """A batch in parts that fit into one transaction each, at least one."""
    parts: list[Part] = [[]]
    size = 0
    for name, packed in _pieces(batch):
        more = 2 * len(name) + len(packed or b"") * 4 // 3  # as the log has it, in base64
        if parts[-1] and (len(parts[-1]) == MAX_OPERATIONS or size + more > MAX_BYTES):
            parts.append([])
            size = 0
        parts[-1].append((name, packed))
        size += more
    return parts


def _pieces(batch: Batch) -> Iterator[tuple[str, bytes | None]]:
    for name, value in {**batch.puts, **dict.fromkeys(batch.deletes)}.items():
        if value is None:
            yield name, None
            continue
        packed = _packed(value)
        for start in range(0, len(packed) or 1, PIECE):
            yield f"{name}\0{start:012d}" if start else name, packed[start : start + PIECE]


def _packed(value: bytes) -> bytes:
    return b"\0" + zlib.compress(value, 1) if len(value) > LARGE or value[:1] == b"\0" else value


def _unpacked(pieces: Sequence[bytes]) -> bytes:
    """A value from its pieces; pieces left by a longer value follow the end of the stream and are ignored.

    One that is damaged stays as it is: it is no record, so its group is set aside.
    """
    if pieces[0][:1] != b"\0":
        return pieces[0]
    packed = b"".join(pieces)
    with suppress(zlib.error):
        return zlib.decompress(packed[1:])
    return packed


def _end(prefix: bytes) -> bytes:
    """The end of the range of all keys with a given prefix, which ends with a slash."""
    return prefix[:-1] + b"0"
