"""Does a server stay small after many jobs? Groups that finish at once, and what is left of them.

    python -m benchmarks.retention [--groups 100000] [--keep-finished-s 5] [--store sqlite|etcd]

The real service on a real store, without HTTP in front: every group is made, cancelled, and forgotten when its time is
over.
Printed while it goes on: groups that there are, resident memory of this process, size of the store. Exit status 1 where
anything is left at the end.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
from tests.support.etcd import EtcdCluster, sturdy

from hetrdzv.core.commands import Cancel, Put
from hetrdzv.service.service import Service
from hetrdzv.settings import Limits
from hetrdzv.storage import open_store
from hetrdzv.storage.base import StateStore
from hetrdzv.storage.etcd.access import access_from
from hetrdzv.storage.etcd.client import Etcd
from hetrdzv.storage.etcd.election import campaign
from hetrdzv.storage.etcd.store import EtcdStore

AT_ONCE = 200
EMPTY_WITHIN_S = 300.0

Size = Callable[[], int]
"""How many bytes a store takes."""


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@contextlib.asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[tuple[StateStore, Size]]:
    """A file of its own."""
    yield open_store(f"sqlite:{folder / 'state.db'}"), lambda: _bytes(folder)


@contextlib.asynccontextmanager
async def etcd(folder: Path) -> AsyncIterator[tuple[StateStore, Size]]:
    """One member of a real etcd. The size is that of its database in use, after the compaction that etcd does by itself
    every five minutes when it is told to."""
    with EtcdCluster(sturdy()) as cluster:
        client = Etcd(access_from(cluster.url("retention")))
        try:
            term = await campaign(client, "http://127.0.0.1:1", 3600)
            assert term is not None
            member = cluster.members[0]

            def size() -> int:
                revision = member.ask("maintenance/status")["header"]["revision"]
                member.ask("kv/compaction", revision=revision, physical=True)
                return int(member.ask("maintenance/status")["dbSizeInUse"])

            yield EtcdStore(client, term), size
        finally:
            await client.close()


async def churn(service: Service, groups: int, size: Size) -> bool:
    """Make and finish the groups; returns whether nothing is left of them."""
    process, began = psutil.Process(), time.monotonic()

    async def one(number: int) -> None:
        await service.execute(f"g{number}", Put({}))
        await service.execute(f"g{number}", Cancel())

    async def show(made: int) -> int:
        left, memory = len(list(service.groups())), process.memory_info().rss >> 20
        store = (await asyncio.to_thread(size)) / 2**20
        passed_s = time.monotonic() - began
        print(
            f"{passed_s:6.0f} s {made:7} made {left:7} there {memory:5} MiB store {store:7.1f} MiB",
            flush=True,
        )
        return left

    await show(0)
    step = max(AT_ONCE, groups // 10)
    for made in range(0, groups, AT_ONCE):
        await asyncio.gather(*(one(number) for number in range(made, min(groups, made + AT_ONCE))))
        if (made + AT_ONCE) % step == 0:
            await show(made + AT_ONCE)
    until = time.monotonic() + EMPTY_WITHIN_S
    while list(service.groups()) and time.monotonic() < until:  # noqa: ASYNC110 - a sweep tells nobody
        await asyncio.sleep(1.0)
    return await show(groups) == 0


async def measure(groups: int, keep_finished_s: float, store: str) -> bool:
    """Run against one store."""
    with tempfile.TemporaryDirectory() as folder:
        async with {"sqlite": sqlite, "etcd": etcd}[store](Path(folder)) as (opened, size):
            service = Service(opened, limits=Limits(keep_finished_s=keep_finished_s, max_groups=2 * groups))
            await service.start()
            try:
                return await churn(service, groups, size)
            finally:
                await service.close()


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--keep-finished-s", type=float, default=5.0)
    parser.add_argument("--store", choices=("sqlite", "etcd"), default="sqlite")
    args = parser.parse_args()
    return 0 if asyncio.run(measure(args.groups, args.keep_finished_s, args.store)) else 1


if __name__ == "__main__":
    sys.exit(main())
