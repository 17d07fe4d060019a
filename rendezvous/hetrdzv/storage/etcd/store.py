"""A store on an etcd cluster, written by the leader only; a batch of any size is committed as one.

    {prefix}/leader            who leads, see election.py; bound to a lease
    {prefix}/meta              JSON: `v`, the clock, the id of the last transaction, how many parts of the log count
    {prefix}/records/{key}     a value
    {prefix}/log/{number}      parts of a batch that is too large for one transaction

Every transaction writes meta, and checks two things. The *leader key* is still the one that we made: nobody else has
become leader since, so a deposed leader writes nothing. *meta* is as our last transaction left it: an attempt that got
no answer cannot take effect later, after others.

etcd takes 128 operations and 1.5 MiB per transaction. A larger batch is compressed and written into the log first; the
transaction that notes in meta how many parts that has is its commit. The next commit applies it and removes the log; a
load before that applies it in memory. Any other log counts for nothing, so half a batch is never seen.
"""

import asyncio
import json
import secrets
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage.base import STORE_FORMAT_VERSION, NothingWritten, RecordChanges, StoreContent
from hetrdzv.storage.etcd.client import (
    EtcdClient,
    EtcdRefused,
    KeyValue,
    Operation,
    compare_mod_revision,
    delete_operation,
    put_operation,
)
from hetrdzv.storage.etcd.election import Term

MAX_OPERATIONS_PER_TRANSACTION = 127
"""The default of etcd's `--max-txn-ops`, less one for meta."""

MAX_TRANSACTION_BYTES = 1 << 20
"""How much we put into one transaction, or into one part of the log (bytes)."""

MIN_COMPRESSED_BYTES = 1 << 16
"""Longer values are compressed (bytes): the members of a round of thousands are alike."""

TRANSACTION_TIMEOUT_S = 10.0
"""How long to try a transaction while no member answers (seconds); a leader's lease ends long before."""


@dataclass(frozen=True)
class _StoreMeta:
    """meta as our last transaction left it."""

    v: int
    clock: float = 0.0  # the highest ever committed (seconds)
    commit: str = ""  # the id of the transaction that wrote it
    log: int = 0  # how many parts the log has that is to be applied
    revision: int = 0  # at which it was written, which is not in it; 0: there is none

    @classmethod
    def parse(cls, pair: KeyValue | None) -> "_StoreMeta":
        if pair is None:
            return cls(STORE_FORMAT_VERSION)
        try:
            meta = codec.parse_json(cls, pair.value, unknown="ignore")
        except codec.MalformedJson:
            raise StorageError(
                "the key 'meta' on etcd does not belong to hetserver: name another prefix with --store"
            ) from None
        if meta.v > STORE_FORMAT_VERSION:
            raise StorageError(
                f"the store on etcd has version {meta.v}, but this hetserver reads at most version "
                f"{STORE_FORMAT_VERSION}: upgrade hetserver, or name another prefix with --store"
            )
        return replace(meta, revision=pair.mod_revision)


class EtcdStore:
    """Records on etcd, written by the leader only: `term` is of the election that we won."""

    def __init__(self, etcd: EtcdClient, term: Term) -> None:
        self._etcd = etcd
        self._term = term
        self._meta = _StoreMeta(STORE_FORMAT_VERSION)
        self._unapplied: Sequence[list[Operation]] = ()  # what applies the log
        self._meta_key, self._log, self._records = (etcd.key(name) for name in ("meta", "log/", "records/"))

    async def load(self) -> StoreContent:
        self._meta = await self._read_meta()
        # Without space it can be read; should an earlier attempt take effect then, the next commit fails.
        with suppress(EtcdRefused):
            await self._send_transaction([])  # no earlier attempt of ours can take effect any more
        found, log = await self._read_all(self._records), await self._read_log()
        self._unapplied = await asyncio.to_thread(self._make_transactions, log) if log else ()
        records = {**{key: _decompress(value) for key, value in found.items()}, **log}
        return StoreContent(
            {key: value for key, value in records.items() if value is not None}, self._meta.clock
        )

    async def commit(self, changes: RecordChanges, clock: float) -> None:
        try:
            await self._commit(changes, clock)
        except EtcdRefused as error:
            if (await self._read_meta()).revision != self._meta.revision:
                raise  # an etcd that runs out of space may refuse what it has written
            raise NothingWritten(str(error)) from error

    async def close(self) -> None:
        pass

    # -- reading ---------------------------------------------------------------------------------------------

    async def _read_meta(self) -> _StoreMeta:
        """meta as it was while we led: the leader key is read after it and is never made twice.

        Not in one transaction: etcd 3.5.1 may panic when a transaction that only reads is cancelled.
        """
        pair, leader = [
            await self._term.run_while_leading(self._etcd.get(key, within_s=TRANSACTION_TIMEOUT_S))
            for key in (self._meta_key, self._term.key)
        ]
        self._term.require_leader_key(leader)
        return _StoreMeta.parse(pair)

    async def _read_all(self, prefix: bytes) -> dict[str, bytes]:
        """Every value below a prefix."""
        pairs = await self._term.run_while_leading(self._etcd.get_all(prefix, within_s=TRANSACTION_TIMEOUT_S))
        # a key that is no text is not ours either, and is refused by name
        return {pair.key.removeprefix(prefix).decode(errors="backslashreplace"): pair.value for pair in pairs}

    async def _read_log(self) -> RecordChanges:
        """The changes in the log that were not applied yet."""
        if not self._meta.log:
            return {}
        found = sorted((await self._read_all(self._log)).items())
        log = b"".join(part for _, part in found[: self._meta.log])
        try:
            texts = codec.parse_json(dict[str, str | None], zlib.decompress(log))
            return {key: text.encode("latin-1") if text is not None else None for key, text in texts.items()}
        except (zlib.error, codec.MalformedJson, UnicodeEncodeError):
            await self._read_meta()  # else our successor has removed it
            raise StorageError(
                f"the store on etcd ({self._etcd.access}) lacks a part of a batch: "
                f"restore a backup of it, or name another prefix with --store"
            ) from None

    # -- writing ---------------------------------------------------------------------------------------------

    async def _commit(self, changes: RecordChanges, clock: float) -> None:
        if self._unapplied:
            for operations in self._unapplied:
                await self._send_transaction(operations)
            await self._send_transaction([delete_operation(self._log, self._log[:-1] + b"0")], log=0)
            self._unapplied = ()
        transactions = await asyncio.to_thread(self._make_transactions, changes)  # it compresses
        if len(transactions) == 1:
            await self._send_transaction(transactions[0], clock)
            return
        # An etcd that takes fewer operations refuses this, before the log is valid and has to be applied.
        await self._send_transaction(
            [
                delete_operation(self._log + b"%06d" % number)
                for number in range(MAX_OPERATIONS_PER_TRANSACTION)
            ]
        )
        log = await asyncio.to_thread(_compress_log, changes)
        starts = range(0, len(log), MAX_TRANSACTION_BYTES)
        for number, start in enumerate(starts):
            await self._send_transaction(
                [put_operation(self._log + b"%06d" % number, log[start : start + MAX_TRANSACTION_BYTES])]
            )
        await self._send_transaction([], clock, log=len(starts))
        self._unapplied = transactions

    def _make_transactions(self, changes: RecordChanges) -> Sequence[list[Operation]]:
        """What makes these changes, in transactions that etcd takes, at least one."""
        transactions: list[list[Operation]] = [[]]
        size = 0
        for name, value in changes.items():
            key, packed = self._records + name.encode(), _compress(value) if value is not None else None
            more = len(key) + len(packed or b"")
            if transactions[-1] and (
                len(transactions[-1]) == MAX_OPERATIONS_PER_TRANSACTION or size + more > MAX_TRANSACTION_BYTES
            ):
                transactions.append([])
                size = 0
            transactions[-1].append(
                put_operation(key, packed) if packed is not None else delete_operation(key)
            )
            size += more
        return transactions

    async def _send_transaction(
        self, operations: Sequence[Operation], clock: float = 0.0, log: int | None = None
    ) -> None:
        """Run a transaction, which writes meta too, if we lead and meta is as our last one left it.

        `log`: how many parts the log has from now on; None: as before.
        """
        meta = replace(
            self._meta,
            v=STORE_FORMAT_VERSION,
            clock=max(clock, self._meta.clock),
            commit=secrets.token_hex(8),
            log=self._meta.log if log is None else log,
        )
        writes = [*operations, put_operation(self._meta_key, codec.to_json(meta, without={"revision"}))]
        compare = [
            self._term.leader_key_comparison,
            compare_mod_revision(self._meta_key, self._meta.revision),
        ]
        revision = await self._term.run_while_leading(
            self._etcd.txn(compare, writes, within_s=TRANSACTION_TIMEOUT_S)
        )
        if revision is None:
            found = await self._read_meta()
            if found.commit != meta.commit:  # else an attempt that got no answer has done it
                raise StorageError("the state on etcd has changed and must be read again")
            revision = found.revision
        self._meta = replace(meta, revision=revision)


def _compress(value: bytes) -> bytes:
    return (
        b"\0" + zlib.compress(value, 1) if len(value) > MIN_COMPRESSED_BYTES or value[:1] == b"\0" else value
    )


def _decompress(value: bytes) -> bytes:
    """The value that was packed. One that is damaged stays as it is: it is no record, so its group is set aside."""
    with suppress(zlib.error):
        return zlib.decompress(value[1:]) if value[:1] == b"\0" else value
    return value


def _compress_log(changes: RecordChanges) -> bytes:
    texts = {key: value.decode("latin-1") if value is not None else None for key, value in changes.items()}
    return zlib.compress(json.dumps(texts).encode(), 1)
