"""One of several servers on one etcd cluster: serves while it leads, else points to the leader.

Every term of leadership has a `Service` of its own, which loads everything from etcd. The election itself is in
storage/etcd/election.py.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from hetrdzv.protocol.errors import NoLeader, NotLeader, ServerStopping, StorageError
from hetrdzv.protocol.replies import ReadyReply
from hetrdzv.service.service import Service
from hetrdzv.storage.base import StateStore
from hetrdzv.storage.etcd.client import EtcdClient, EtcdRefused
from hetrdzv.storage.etcd.election import (
    CALL_TIMEOUT_S,
    LEADER_LEASE_S,
    Term,
    boottime_s,
    campaign_for_leadership,
    find_leader,
    renew_until_over,
)
from hetrdzv.storage.etcd.store import EtcdStore

logger = logging.getLogger(__name__)

LEADER_POLL_INTERVAL_S = 0.25
"""How often a follower looks who leads (seconds)."""

START_TIMEOUT_S = 10.0
"""How long to wait for etcd at the start (seconds)."""

LOG_REPEAT_INTERVAL_S = 10.0
"""The same complaint is logged again only after this long (seconds)."""


class ElectedReplica:
    """One of several servers on one etcd cluster; clients reach it at `url`. `close` closes `etcd`, too."""

    def __init__(
        self,
        etcd: EtcdClient,
        url: str,
        make_service: Callable[[StateStore], Service] = Service,
    ) -> None:
        self._etcd = etcd
        self._url = url
        self._make_service = make_service
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._term: Term | None = None
        self._service: Service | None = None
        self._leader: str | None = None
        self._seen_at = 0.0
        self._complaint = ("", 0.0)

    # -- what requests ask -----------------------------------------------------------------------------------

    def service(self) -> Service:
        if self._stop.is_set():
            raise ServerStopping("the server is stopping; try again in a moment, or try another server")
        if self._service is not None and self.may_send_reply(self._service):
            return self._service
        seen_lately = boottime_s() - self._seen_at <= LEADER_LEASE_S
        if self._leader is not None and self._leader != self._url and seen_lately:
            raise NotLeader(f"this server does not lead: ask {self._leader}", self._leader)
        raise NoLeader("no server leads right now; try again in a moment (if this lasts, its log says why)")

    def may_send_reply(self, service: Service) -> bool:
        return service is self._service and self._term is not None and self._term.remaining_s() > 0.0

    def status(self) -> ReadyReply:
        try:
            alone = self.service().status()
        except NotLeader as error:
            return ReadyReply(status="ready", role="follower", leader=error.leader)
        return replace(alone, role="leader", leader=self._url)

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        until = boottime_s() + START_TIMEOUT_S
        while not self._stop.is_set():
            try:
                self._record_leader(await find_leader(self._etcd))
            except StorageError as error:
                if isinstance(error, EtcdRefused) or boottime_s() >= until:
                    raise
                self._log_failure(f"{error}; trying for {START_TIMEOUT_S:g} s")
                await self._pause(LEADER_POLL_INTERVAL_S)
            else:
                self._running = asyncio.ensure_future(self._follow_forever())
                return

    def begin_stop(self) -> None:
        self._stop.set()
        if self._service is not None:
            self._service.begin_stop()

    async def close(self) -> None:
        self.begin_stop()
        if self._running is not None:
            await self._running
        await self._etcd.close()

    async def _follow_forever(self) -> None:
        """Follow whoever leads; campaign when nobody does."""
        while not self._stop.is_set():
            try:
                self._record_leader(await find_leader(self._etcd))
                if self._leader is None and (term := await campaign_for_leadership(self._etcd, self._url)):
                    await self._lead(term)
                    continue
            except StorageError as error:
                self._log_failure(str(error))
            except Exception:  # a bug must not take this server out of the election for good
                logger.exception("following or leading failed; trying again")
            await self._pause(LEADER_POLL_INTERVAL_S * random.uniform(0.8, 1.2))

    async def _lead(self, term: Term) -> None:
        """Serve until the term is over or the server stops.

        If the state cannot be served, its error comes after a pause in which other servers may try.
        """
        service = self._make_service(EtcdStore(self._etcd, term))
        over = asyncio.ensure_future(renew_until_over(self._etcd, term, self._log_failure))
        stop = asyncio.ensure_future(self._stop.wait())
        start = asyncio.ensure_future(service.start())
        try:
            await asyncio.wait({over, stop, start}, return_when=asyncio.FIRST_COMPLETED)
            if start.done() and start.exception() is None:
                self._term, self._service, self._leader = term, service, None
                logger.info("this server leads now, at %s", self._url)
                await asyncio.wait({over, stop}, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                logger.warning("this server no longer leads: %s", over.result())
        finally:
            if not start.done():
                term.lost.set()  # nothing more is written
            service.begin_stop()
            start.cancel()
            try:
                await asyncio.gather(start, return_exceptions=True)
                await service.close()
            finally:
                self._service = self._term = None
                for task in (over, stop):
                    task.cancel()
                with suppress(StorageError):
                    await self._etcd.revoke_lease(term.lease, within_s=CALL_TIMEOUT_S / 2)
        if not start.cancelled() and (error := start.exception()) is not None:
            await self._pause(LEADER_LEASE_S)
            raise error

    # -- helpers ---------------------------------------------------------------------------------------------

    def _record_leader(self, leader: str | None) -> None:
        if leader is not None and leader != self._leader:
            logger.info("%s leads", leader)
        self._leader, self._seen_at = leader, boottime_s()

    def _log_failure(self, what: str) -> None:
        """Log a failure, but not the same one over and over."""
        last, at = self._complaint
        if what != last or boottime_s() - at > LOG_REPEAT_INTERVAL_S:
            self._complaint = (what, boottime_s())
            logger.error("%s", what)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)
