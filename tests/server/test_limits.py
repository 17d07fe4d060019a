"""Limits on groups and nodes, and on what a body may have."""

import asyncio

import pytest

from hetrdzv.core.commands import Cancel, Drain, Leave, Put, Undrain
from hetrdzv.protocol.errors import Refused
from hetrdzv.service.retention import Limits
from tests.support.served import join, serving

# -- groups and nodes --------------------------------------------------------------------------------------


async def test_groups_are_counted_whoever_makes_them() -> None:
    async with serving(limits=Limits(max_groups=3)) as (service, _):
        made = await asyncio.gather(
            *(service.execute(f"g{n}", Put({}) if n % 2 else join("a")) for n in range(5)),
            return_exceptions=True,
        )
        assert [type(one).__name__ for one in made] == ["Group"] * 3 + ["Refused"] * 2
        with pytest.raises(Refused, match=r"keeps 3 groups .*hetctl delete.*--keep-finished"):
            await service.execute("more", join("a"))
        await service.execute("g0", join("b"))
        await service.execute("g1", Cancel())
        await service.delete("g1")
        await service.execute("more", Put({}))


async def test_nodes_are_counted_while_they_live() -> None:
    async with serving(limits=Limits(max_nodes_per_group=2)) as (service, _):
        await service.execute("g", join("a", min_nodes=9))
        await service.execute("g", join("b"))
        with pytest.raises(Refused, match=r"group 'g' may have 2 nodes .*another group"):
            await service.execute("g", join("c"))
        await service.execute("g", join("a"))  # said twice
        await service.execute("other", join("c"))
        await service.execute("g", Leave(node_id="a", incarnation="1"))
        await service.execute("g", join("c"))
        with pytest.raises(Refused):
            await service.execute("g", join("a", "2"))
        for node_id in ("b", "c", "b"):
            await service.execute("g", Drain(node_id))
        with pytest.raises(Refused):
            await service.execute("g", Drain("a"))
        await service.execute("g", Undrain("b"))
        await service.execute("g", Drain("a"))
