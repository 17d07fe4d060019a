"""One leader among several servers on etcd: campaign, renew, resign; and who leads, for those that do not.

The leader key hangs on an etcd lease. Its maker leads as long as it is sure that the lease has not run out: from
when the last renewal that succeeded was sent, for the lease less a margin, by a clock that runs while the machine
sleeps. For each time that a server leads there is a new `Service`, which loads everything from etcd.
"""

import asyncio
import json
import logging
import random
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from etcd3aio.kv import KVService

from hetrdzv.errors import NoLeader, NotLeader, ServerStopping, StorageError
from hetrdzv.etcd import PAUSE_S, Etcd, EtcdAway, EtcdRefused
from hetrdzv.replica import ReplicaStatus
from hetrdzv.service import Service
from hetrdzv.storage.base import StateStore
from hetrdzv.storage.etcd import EtcdStore, Fence

logger = logging.getLogger(__name__)

DEFAULT_LEASE_S = 3
"""How long a leader is believed in that does not renew (seconds); etcd gives no less than 2 by default."""

MARGIN = 0.15
"""The part of a lease by which its holder stops answering before it can have run out."""

RENEWALS = 6
"""How often a lease is renewed in its time."""

FOLLOW_S = 0.25
"""How often the others look who leads (seconds)."""

START_PATIENCE_S = 10.0
"""How long etcd is waited for at the start (seconds)."""

CALL_S = 2.0
"""How long a call is tried that can be repeated later (seconds)."""


def awake_s() -> float:
    """A clock that only goes forward, and goes on while the machine sleeps (seconds)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, as the leader key says.

    Attributes:
        url: where it answers.
        nonce: of this one campaign.
    """

    url: str
    nonce: str

    @classmethod
    def read(cls, found: Any) -> "Leader | None":
        """From the leader key, or None where there is none."""
        if found is None:
            return None
        try:
            told = json.loads(found.value)
            return cls(str(told["url"]), str(told["nonce"]))
        except (ValueError, KeyError, TypeError):
            raise StorageError(
                f"the key {found.key.decode(errors='replace')} on etcd is not hetserver's: "
                f"name another prefix with --store"
            ) from None

    def value(self) -> bytes:
        """For the leader key."""
        return json.dumps({"url": self.url, "nonce": self.nonce}).encode()


class Term:
    """A leader key that is ours, and the time that it is surely ours.

    Args:
        lease: of etcd, that the key hangs on.
        ttl_s: how long it lasts without renewal (seconds).
        renewed_at: when what gave it was sent, by `awake_s`.
    """

    def __init__(self, fence: Fence, lease: int, ttl_s: float, renewed_at: float) -> None:
        self.fence = fence
        self.lease = lease
        self.ttl_s = ttl_s
        self.until = 0.0
        self.renewed(renewed_at, ttl_s)

    def renewed(self, sent_at: float, ttl_s: float) -> None:
        """A renewal that was sent then has succeeded."""
        self.until = sent_at + ttl_s * (1.0 - MARGIN)

    def left_s(self) -> float:
        """How much longer it is surely ours (seconds)."""
        return 0.0 if self.fence.lost.is_set() else self.until - awake_s()


async def who_leads(etcd: Etcd, within_s: float = CALL_S) -> Leader | None:
    """Who made the leader key.

    Raises:
        StorageError: etcd does not say.
    """
    return Leader.read(await etcd.get(etcd.key("leader"), within_s=within_s))


async def campaign(etcd: Etcd, url: str, lease_s: int) -> Term | None:
    """Make the leader key, if there is none.

    Raises:
        StorageError: etcd does not say what became of it.
    """
    ours = Leader(url, secrets.token_hex(8))
    key, began = etcd.key("leader"), awake_s()
    lease, ttl_s = await etcd.grant(lease_s, within_s=CALL_S)
    try:
        reply = await etcd.txn(
            [KVService.txn_compare_create_revision(key, 0)],
            [KVService.txn_op_put(key, ours.value(), lease=lease)],
            [KVService.txn_op_get(key)],
            within_s=CALL_S,
        )
    except BaseException:
        with suppress(StorageError):
            await etcd.revoke(lease, within_s=CALL_S / 4)
        raise
    revision = reply.header.revision
    if not reply.succeeded:
        (found,) = reply.responses[0].response_range.kvs
        if Leader.read(found) != ours:
            await etcd.revoke(lease, within_s=CALL_S)
            return None
        revision = found.create_revision  # an attempt that got no answer had made it
    return Term(Fence(key, revision), lease, ttl_s, began)


class ElectedReplica:
    """One of several servers on one etcd cluster.

    Args:
        etcd: closed by this.
        url: where clients reach this server.
        lease_s: how long this server would be believed in as a leader (seconds).
        make_service: makes the service of a term from its store.
    """

    def __init__(
        self,
        etcd: Etcd,
        url: str,
        lease_s: int = DEFAULT_LEASE_S,
        make_service: Callable[[StateStore], Service] = Service,
    ) -> None:
        self._etcd = etcd
        self._url = url
        self._lease_s = lease_s
        self._make_service = make_service
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._term: Term | None = None
        self._service: Service | None = None
        self._spent_lease: int | None = None
        self._leader: Leader | None = None
        self._seen_at = 0.0
        self._complaint = ("", 0.0)

    # -- what requests ask -----------------------------------------------------------------------------------

    def service(self) -> Service:
        if self._stop.is_set():
            raise ServerStopping("the server is stopping; ask again in a moment, or ask another one")
        if self._service is not None and self.answers(self._service):
            return self._service
        if (leader := self._other()) is not None:
            raise NotLeader(f"this server does not lead: ask {leader}", leader)
        raise NoLeader("no server leads for now (its log says why, if this lasts); ask again in a moment")

    def answers(self, service: Service) -> bool:
        return service is self._service and self._term is not None and self._term.left_s() > 0.0

    def status(self) -> ReplicaStatus:
        try:
            self.service().require_ready()
        except NotLeader as error:
            return ReplicaStatus("follower", error.leader)
        return ReplicaStatus("leader", self._url)

    def _other(self) -> str | None:
        """Another server that leads, as far as is known."""
        if self._leader is None or awake_s() - self._seen_at > self._lease_s:
            return None
        return self._leader.url if self._leader.url != self._url else None

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        until = awake_s() + START_PATIENCE_S
        while True:
            try:
                self._saw(await who_leads(self._etcd))
                break
            except EtcdRefused:
                raise
            except StorageError as error:
                if self._stop.is_set():
                    return
                if awake_s() >= until:
                    raise
                self._complain(f"{error}; trying for {START_PATIENCE_S:g} s")
            await self._pause(FOLLOW_S)
        self._running = asyncio.ensure_future(self._run())

    def begin_stop(self) -> None:
        self._stop.set()
        if self._service is not None:
            self._service.begin_stop()

    async def close(self) -> None:
        self.begin_stop()
        if self._running is not None:
            await self._running
        await self._etcd.close()

    async def _run(self) -> None:
        """Follow who leads; campaign when nobody does."""
        while not self._stop.is_set():
            try:
                await self._resign(CALL_S)
                self._saw(await who_leads(self._etcd))
                if self._leader is None and (term := await campaign(self._etcd, self._url, self._lease_s)):
                    await self._lead(term)
                    continue
            except StorageError as error:
                self._complain(str(error))
            except Exception:  # a bug must not leave the others' etcd without its candidates
                logger.exception("following or leading failed; trying again")
            await self._pause(FOLLOW_S * random.uniform(0.8, 1.2))

    async def _lead(self, term: Term) -> None:
        """Serve until the term is over or the server stops.

        Raises:
            StorageError: the state cannot be served; for a lease, others have the chance to try.
        """
        service = self._make_service(EtcdStore(self._etcd, term.fence))
        over = asyncio.ensure_future(self._renew(term))
        stop = asyncio.ensure_future(self._stop.wait())
        start = asyncio.ensure_future(service.start())
        try:
            await asyncio.wait({over, stop, start}, return_when=asyncio.FIRST_COMPLETED)
            if start.done() and start.exception() is None:
                self._term, self._service, self._leader = term, service, None
                logger.info("this server leads now, at %s", self._url)
                await asyncio.wait({over, stop}, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                logger.warning("this server does not lead any more: %s", over.result())
        finally:
            if not start.done():
                term.fence.lost.set()  # nothing is tried any more
            service.begin_stop()
            start.cancel()
            try:
                await asyncio.gather(start, return_exceptions=True)
                await service.close()
            finally:
                self._service = self._term = None
                self._spent_lease = term.lease
                for task in (over, stop):
                    task.cancel()
            with suppress(StorageError):
                await self._resign(CALL_S / 2)
        if not start.cancelled() and (error := start.exception()) is not None:
            await self._pause(self._lease_s)
            raise error

    async def _resign(self, within_s: float) -> None:
        """End the lease of a term that is over, so that nobody has to wait until it runs out."""
        if self._spent_lease is not None:
            await self._etcd.revoke(self._spent_lease, within_s=within_s)
            self._spent_lease = None

    async def _renew(self, term: Term) -> str:
        """Renew the lease; returns when that could not be done, and why. Nothing is tried any more then."""
        try:
            return await self._renewals(term)
        finally:
            term.fence.lost.set()

    async def _renewals(self, term: Term) -> str:
        attempt_s, pause_s, why = term.ttl_s / 5, 0.0, "its lease ran out"
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(term.fence.lost.wait(), pause_s)
            pause_s = PAUSE_S
            sent_at, left_s = awake_s(), term.left_s()
            if term.fence.lost.is_set():
                return "etcd refused a write"
            if left_s <= 0.0:
                return why
            try:
                within_s = min(attempt_s, left_s)
                ttl_s = await self._etcd.keep_alive(term.lease, within_s=within_s, attempt_s=within_s)
            except EtcdAway as error:
                why = f"its lease could not be renewed in time: {error}"
                continue
            except StorageError as error:
                why = f"its lease could not be renewed: {error}"
                self._complain(why)
                continue
            if ttl_s <= 0:
                return "etcd ended its lease"
            term.renewed(sent_at, ttl_s)
            pause_s = term.ttl_s / RENEWALS

    # -- small things ----------------------------------------------------------------------------------------

    def _saw(self, leader: Leader | None) -> None:
        if leader is not None and leader != self._leader:
            logger.info("%s leads", leader.url)
        self._leader, self._seen_at = leader, awake_s()

    def _complain(self, what: str) -> None:
        """Log what does not go, but not the same thing over and over."""
        said, at = self._complaint
        if what != said or awake_s() - at > 10.0:
            self._complaint = (what, awake_s())
            logger.error("%s", what)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)
