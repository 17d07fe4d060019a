"""A store on an etcd cluster, written by the leader only; a batch of any size is committed as one.

    {prefix}/leader            who leads, see election.py; bound to a lease
    {prefix}/meta              JSON: `v`, the clock, the id of the last transaction, how many parts of the log count
    {prefix}/records/{key}     a value
    {prefix}/log/{number}      parts of a batch that is too large for one transaction

Every transaction writes meta, and checks two things. The *leader key* is still the one that we made: nobody else has
become leader since, so a deposed leader writes nothing. *meta* is as our last transaction left it: an attempt that got
no answer cannot take effect later, after others.

etcd takes 128 operations and 1.5 MiB per transaction. A larger batch is compressed and written into the log first; the
transaction that notes in meta how many parts that has is its commit; then it is applied, and the log is removed. Any
other log counts for nothing, so half a batch is never seen.

A load applies a valid log in memory, since an etcd without space refuses every write; the next commit applies it there.
"""

import asyncio
import json
import secrets
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage.base import VERSION, Batch, NothingWritten, Snapshot
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

MAX_OPERATIONS = 127
"""The default of etcd's `--max-txn-ops`, less one for meta."""

MAX_BYTES = 1 << 20
"""How much we put into one transaction, or into one part of the log (bytes)."""

LARGE = 1 << 16
"""Longer values are compressed (bytes): the members of a round of thousands are alike."""

PAGE = 2_000
"""How many keys are read at a time."""

PATIENCE_S = 10.0
"""How long to try a transaction while no member answers (seconds); a leader's lease ends long before."""

T = TypeVar("T")

Changes = Mapping[str, bytes | None]
"""New values by key; None: deleted."""


class _MetaConflict(StorageError):
    """meta has changed: by an attempt of ours that got no answer, or by hand."""


@dataclass(frozen=True, slots=True)
class _Meta:
    """meta as our last transaction left it."""

    v: int
    clock: float = 0.0  # the highest ever committed (seconds)
    commit: str = ""  # the id of the transaction that wrote it
    log: int = 0  # how many parts the log has that is to be applied
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
        found = await self._range(self._records)
        records = {key: _unpacked(value) for key, value in found.items()} | await self._read_log(meta.log)
        return Snapshot({key: value for key, value in records.items() if value is not None}, meta.clock)

    async def _claim_meta(self) -> _Meta:
        """Read meta, and write it again, so that no earlier attempt can still take effect."""
        while True:
            self._meta = meta = await self._read_meta()
            try:
                return await self._send([])
            except _MetaConflict:
                continue  # an earlier attempt of ours took effect just now
            except EtcdRefused:
                return meta  # it has no space, but can be read; if that attempt comes, the next commit fails

    async def _range(self, prefix: bytes) -> dict[str, bytes]:
        """Every value below a prefix, which ends with a slash, as of one moment."""
        start, end, content = prefix, prefix[:-1] + b"0", dict[str, bytes]()
        revision, more = 0, True
        while more:
            page = self._etcd.page(start, end, revision, PAGE, within_s=PATIENCE_S)
            pairs, revision, more = await self._term.guard(page)
            for pair in pairs:  # a key that is no text is not ours either, and is refused by name
                content[pair.key.removeprefix(prefix).decode(errors="backslashreplace")] = pair.value
                start = pair.key + b"\0"
        return content

    async def _read_log(self, parts: int) -> dict[str, bytes | None]:
        """The changes in the log, which has so many parts; none if it has none."""
        if not parts:
            return {}
        found = sorted((await self._range(self._log)).items())
        log = b"".join(part for _, part in found[:parts])
        try:
            texts = codec.read(dict[str, str | None], zlib.decompress(log))
            return {key: text.encode("latin-1") if text is not None else None for key, text in texts.items()}
        except (zlib.error, codec.Malformed, UnicodeEncodeError):
            await self._read_meta()  # else our successor has removed it
            raise StorageError(
                f"the store on etcd ({self._etcd.access}) lacks a part of a batch: "
                f"restore a backup of it, or name another prefix with --store"
            ) from None

    # -- writing ---------------------------------------------------------------------------------------------

    async def _commit(self, batch: Batch) -> None:
        meta = self._meta or await self._claim_meta()
        try:
            if meta.log:
                await self._apply(self._transactions(await self._read_log(meta.log)))
            await self._write({**batch.puts, **dict.fromkeys(batch.deletes)}, batch.clock)
        except EtcdRefused as error:
            written = await self._read_meta()
            if self._meta is None or written.revision != self._meta.revision:
                raise  # an etcd that runs out of space may refuse what it has written
            raise NothingWritten(str(error)) from error

    async def _write(self, changes: Changes, clock: float) -> None:
        transactions = await asyncio.to_thread(self._transactions, changes)  # it compresses
        if len(transactions) == 1:
            await self._send(transactions[0], clock)
            return
        # An etcd that takes fewer operations refuses this, before the log is valid and has to be applied.
        await self._send([delete(self._log + b"%06d" % number) for number in range(MAX_OPERATIONS)])
        log = await asyncio.to_thread(_packed_log, changes)
        starts = range(0, len(log), MAX_BYTES)
        for number, start in enumerate(starts):
            await self._send([put(self._log + b"%06d" % number, log[start : start + MAX_BYTES])])
        await self._send([], clock, log=len(starts))
        with suppress(EtcdRefused):  # it is committed; the next commit applies it
            await self._apply(transactions)

    async def _apply(self, transactions: Sequence[list[Operation]]) -> None:
        """Apply a valid log, then remove it. Harmless if it was already applied, wholly or in part."""
        for operations in transactions:
            await self._send(operations)
        await self._send([delete(self._log, self._log[:-1] + b"0")], log=0)

    def _transactions(self, changes: Changes) -> Sequence[list[Operation]]:
        """What makes these changes, in transactions that etcd takes, at least one."""
        transactions: list[list[Operation]] = [[]]
        size = 0
        for name, value in changes.items():
            key, packed = self._records + name.encode(), _packed(value) if value is not None else None
            more = len(key) + len(packed or b"")
            if transactions[-1] and (len(transactions[-1]) == MAX_OPERATIONS or size + more > MAX_BYTES):
                transactions.append([])
                size = 0
            transactions[-1].append(put(key, packed) if packed is not None else delete(key))
            size += more
        return transactions

    async def _send(
        self, operations: Sequence[Operation], clock: float = 0.0, log: int | None = None
    ) -> _Meta:
        """Run a transaction, which writes meta too, if we lead and meta is as our last one left it.

        `log`: how many parts the log has from now on; None: as before.
        """
        assert self._meta is not None
        written = replace(
            self._meta,
            v=VERSION,
            clock=max(clock, self._meta.clock),
            commit=secrets.token_hex(8),
            log=self._meta.log if log is None else log,
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

    async def _read_meta(self) -> _Meta:
        """meta as it was while we led: the leader key is read after it and is never made twice.

        Not in one transaction: etcd 3.5.1 may panic when a transaction that only reads is cancelled.
        """
        pair, leader = [
            await self._term.guard(self._etcd.get(key, within_s=PATIENCE_S))
            for key in (self._meta_key, self._term.key)
        ]
        self._term.require(leader)
        return _Meta.parse(pair)


def _packed(value: bytes) -> bytes:
    return b"\0" + zlib.compress(value, 1) if len(value) > LARGE or value[:1] == b"\0" else value


def _unpacked(value: bytes) -> bytes:
    """The value that was packed. One that is damaged stays as it is: it is no record, so its group is set aside."""
    with suppress(zlib.error):
        return zlib.decompress(value[1:]) if value[:1] == b"\0" else value
    return value


def _packed_log(changes: Changes) -> bytes:
    texts = {key: value.decode("latin-1") if value is not None else None for key, value in changes.items()}
    return zlib.compress(json.dumps(texts).encode(), 1)
