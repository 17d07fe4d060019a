"""A store on a real etcd whose owner becomes leader when it is first used."""

import asyncio

from hetrdzv.storage.base import Batch, Snapshot
from hetrdzv.storage.etcd.access import access_from
from hetrdzv.storage.etcd.client import Etcd
from hetrdzv.storage.etcd.election import Term, campaign
from hetrdzv.storage.etcd.store import EtcdStore

LEASE_S = 60
"""Longer than any test, since nothing renews it."""


class LeadingStore:
    """An `EtcdStore` that campaigns when it is first used and resigns when it is closed.

    Args:
        url: `etcd://...`, as for `--store`.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.store: EtcdStore | None = None
        self.term: Term | None = None
        self.etcd: Etcd | None = None
        self._closed = False
        self._opening = asyncio.Lock()

    async def opened(self) -> EtcdStore:
        """Win the election if not done yet; returns the store."""
        async with self._opening:
            if self.store is None:
                self.etcd = Etcd(access_from(self.url))
                self.term = await campaign(self.etcd, "http://test:1", LEASE_S)
                assert self.term is not None, "another server leads"
                self.store = EtcdStore(self.etcd, self.term)
                if self._closed:
                    await self.store.close()
        return self.store

    async def load(self) -> Snapshot:
        return await (await self.opened()).load()

    async def commit(self, batch: Batch) -> None:
        await (await self.opened()).commit(batch)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        async with self._opening:
            if self.store is None:
                return
        assert self.etcd is not None
        assert self.term is not None
        await self.store.close()
        await self.etcd.revoke(self.term.lease, within_s=5.0)

    async def let_go(self) -> None:
        """Close the store and its connections."""
        await self.close()
        if self.etcd is not None:
            await self.etcd.close()
