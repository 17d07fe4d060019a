"""Limits on groups and nodes, and on what a body may have."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from hetrdzv.core.commands import Cancel, Drain, Leave, Put, Undrain
from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import TooManyGroups, TooManyNodes
from hetrdzv.protocol.requests.joining import JoinRequest, SpecFields
from hetrdzv.protocol.requests.reports import ReportRequest
from hetrdzv.settings import Limits
from tests.support.served import join, serving

# -- groups and nodes --------------------------------------------------------------------------------------


async def test_groups_are_counted_whoever_makes_them() -> None:
    async with serving(limits=Limits(max_groups=3)) as (service, _):
        made = await asyncio.gather(
            *(service.execute(f"g{n}", Put({}) if n % 2 else join("a")) for n in range(5)),
            return_exceptions=True,
        )
        assert [type(one).__name__ for one in made] == ["Group"] * 3 + ["TooManyGroups"] * 2
        with pytest.raises(TooManyGroups, match=r"keeps 3 groups .*hetctl delete.*--keep-finished"):
            await service.execute("more", join("a"))
        await service.execute("g0", join("b"))
        await service.execute("g1", Cancel())
        await service.delete("g1")
        await service.execute("more", Put({}))


async def test_nodes_are_counted_while_they_live() -> None:
    async with serving(limits=Limits(max_nodes_per_group=2)) as (service, _):
        await service.execute("g", join("a", min_nodes=9))
        await service.execute("g", join("b"))
        with pytest.raises(TooManyNodes, match=r"group 'g' may have 2 nodes .*another group"):
            await service.execute("g", join("c"))
        await service.execute("g", join("a"))  # said twice
        await service.execute("other", join("c"))
        await service.execute("g", Leave(node_id="a", incarnation="1"))
        await service.execute("g", join("c"))
        with pytest.raises(TooManyNodes):
            await service.execute("g", join("a", "2"))
        for node_id in ("b", "c", "b"):
            await service.execute("g", Drain(node_id))
        with pytest.raises(TooManyNodes):
            await service.execute("g", Drain("a"))
        await service.execute("g", Undrain("b"))
        await service.execute("g", Drain("a"))


def unbounded(schema: Any, path: str = "") -> Iterator[str]:
    """The texts, lists and mappings in a JSON schema that may have any size."""
    if isinstance(schema, list):
        for n, one in enumerate(schema):
            yield from unbounded(one, f"{path}[{n}]")
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    bound = {"string": ("maxLength", "pattern", "enum", "const"), "array": ("maxItems",)}.get(
        str(kind), ("",)
    )
    if kind == "object" and "properties" not in schema:
        bound = ("maxProperties",)
    if bound != ("",) and not any(word in schema for word in bound):
        yield path
    for name, value in schema.items():
        yield from unbounded(value, f"{path}.{name}")


@pytest.mark.parametrize("model", [JoinRequest, ReportRequest, SpecFields])
def test_every_text_and_list_of_a_body_is_bounded(model: Any) -> None:
    schema = codec.adapter(model).json_schema()
    assert list(unbounded(schema)) == []
    assert schema["additionalProperties"] is False
    assert list(unbounded({"x": {"type": "string"}, "y": {"type": "array"}})) == [".x", ".y"]
