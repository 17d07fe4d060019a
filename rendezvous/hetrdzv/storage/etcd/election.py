"""Leader election on etcd: campaign, renew, and who leads.

The leader key holds the URL of the leader and is bound to an etcd lease. The server that made it leads while the lease
cannot have expired: for the length of the lease less a margin, counted from when the last successful renewal was sent,
on a clock that keeps running while the machine sleeps.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage.etcd.client import (
    RETRY_PAUSE_S,
    EtcdClient,
    EtcdUnavailable,
    KeyValue,
    Operation,
    compare_create_revision,
    put_operation,
)

LEADER_LEASE_S = 3
"""How long a silent leader is still taken for the leader (seconds); etcd grants no less than 2 by default."""

LEASE_MARGIN_SHARE = 0.15
"""The leader stops answering when this fraction of its lease is left."""

RENEWALS_PER_LEASE = 6
"""How many times a lease is renewed within its length."""

CALL_TIMEOUT_S = 2.0
"""How long to try a call that can be repeated later (seconds)."""

T = TypeVar("T")


def boottime_s() -> float:
    """A monotonic clock that keeps running while the machine sleeps (seconds)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeadershipLost(StorageError):
    """Another server leads, or may lead: nothing was written."""


@dataclass(eq=False)
class Term:
    """Our term as the leader: while the leader key is the one that we made at `revision`, bound to an etcd lease.

    Attributes:
        renewed_at: when the last renewal that succeeded was sent.
        lost: set as soon as we know that we no longer lead.
    """

    key: bytes
    revision: int
    lease: int
    ttl_s: float
    renewed_at: float
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def leader_key_comparison(self) -> Operation:
        """Makes a transaction succeed only in this term."""
        return compare_create_revision(self.key, self.revision)

    def remaining_s(self) -> float:
        """For how much longer the leader key is certainly ours (seconds)."""
        return (
            0.0
            if self.lost.is_set()
            else self.renewed_at + self.ttl_s * (1.0 - LEASE_MARGIN_SHARE) - boottime_s()
        )

    def require_leader_key(self, leader: KeyValue | None) -> None:
        """Check that this is our leader key, else raise `LeadershipLost`."""
        if leader is None or leader.create_revision != self.revision:
            self.lost.set()
            raise LeadershipLost("etcd refused a write: another server leads, or may lead; ask that one")

    async def run_while_leading(self, work: Awaitable[T]) -> T:
        """Await some work; give it up and raise `LeadershipLost` as soon as we no longer lead."""
        task, lost = asyncio.ensure_future(work), asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise LeadershipLost("this server no longer leads; ask the one that does")
            return task.result()
        finally:
            for waiting in (task, lost):
                waiting.cancel()


async def find_leader(etcd: EtcdClient) -> str | None:
    """Where the present leader answers, or None if there is none."""
    pair = await etcd.get(etcd.key("leader"), within_s=CALL_TIMEOUT_S)
    return pair.value.decode("latin-1") if pair is not None else None


async def campaign_for_leadership(etcd: EtcdClient, url: str, lease_s: int = LEADER_LEASE_S) -> Term | None:
    """Try to become the leader; None if somebody else is, or the answer to an attempt was lost.

    What an attempt without an answer has made ends with its lease.
    """
    key, began = etcd.key("leader"), boottime_s()
    lease, ttl_s = await etcd.grant_lease(lease_s, within_s=CALL_TIMEOUT_S)
    write = [put_operation(key, url.encode(), lease)]
    revision = await etcd.txn([compare_create_revision(key, 0)], write, within_s=CALL_TIMEOUT_S)
    if revision is None:
        await etcd.revoke_lease(lease, within_s=CALL_TIMEOUT_S)
        return None
    return Term(key, revision, lease, ttl_s, began)


async def renew_until_over(etcd: EtcdClient, term: Term, complain: Callable[[str], None]) -> str:
    """Renew the lease of a term until the term is over, then fence off every write; returns why it is over."""
    why = "its lease ran out"
    try:
        while (left_s := term.remaining_s()) > 0.0:
            sent_at, pause_s = boottime_s(), RETRY_PAUSE_S
            try:
                ttl_s = await etcd.keep_lease_alive(term.lease, within_s=min(term.ttl_s / 5, left_s))
            except StorageError as error:
                why = f"its lease could not be renewed in time: {error}"
                if not isinstance(error, EtcdUnavailable):
                    complain(why)
            else:
                if ttl_s <= 0:
                    return "etcd ended its lease"
                term.renewed_at, term.ttl_s, pause_s = sent_at, ttl_s, ttl_s / RENEWALS_PER_LEASE
            with suppress(TimeoutError):
                await asyncio.wait_for(term.lost.wait(), pause_s)
        return "etcd refused a write" if term.lost.is_set() else why
    finally:
        term.lost.set()
