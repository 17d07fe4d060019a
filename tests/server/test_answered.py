"""An answer may be sent to a host that is gone: until the node is heard again, its connection speaks for it."""

import asyncio

import pytest

from hetrdzv.core.commands import Cancel, Renew
from hetrdzv.service.liveness.caller import Caller
from hetrdzv.service.polls.polls import Polls
from hetrdzv.service.service import Service
from tests.support.served import serving, two_nodes


class Watched(Caller):
    """A client whose connection breaks when its host is gone."""

    def watch(self, within_s: float) -> bool:
        return True


async def poll(service: Service, caller: Caller, *, direct: bool = True) -> Polls:
    """Answer a poll of node a."""
    polls = Polls(service)
    assert await polls.answer(caller, "g", Renew("a", "1"), None, 60.0, direct=direct) is not None
    return polls


async def is_suspect(service: Service) -> bool:
    """Whether node a is, once the service has done what it had begun."""
    await service.execute("g", Renew("b", "1"))
    for _ in range(10):
        await asyncio.sleep(0)
    return service.group("g").nodes["a"].cut_at is not None


@pytest.mark.parametrize("broken", [False, True])
async def test_a_connection_that_breaks_after_the_answer_makes_a_suspect(broken: bool) -> None:
    """One that is closed does not: the agent may have another."""
    async with serving() as (service, _):
        await two_nodes(service)
        caller = Watched()
        await poll(service, caller)
        caller.hang_up(broken=broken)
        assert await is_suspect(service) is broken


async def test_a_node_that_was_heard_since_is_no_suspect() -> None:
    async with serving() as (service, _):
        await two_nodes(service)
        caller = Watched()
        await poll(service, caller)
        await service.execute("g", Renew("a", "1"))
        caller.hang_up(broken=True)
        assert not await is_suspect(service)


async def test_a_node_with_another_open_poll_is_no_suspect() -> None:
    async with serving() as (service, _):
        await two_nodes(service)
        caller = Watched()
        polls = await poll(service, caller)
        with polls._counted(("g", "a", "1")):
            caller.hang_up(broken=True)
        assert not await is_suspect(service)


async def test_the_connection_of_a_proxy_says_nothing() -> None:
    async with serving() as (service, _):
        await two_nodes(service)
        caller = Watched()
        await poll(service, caller, direct=False)
        caller.hang_up(broken=True)
        assert not caller.lease_s
        assert not await is_suspect(service)


async def test_a_break_after_the_group_was_deleted_is_no_error() -> None:
    async with serving() as (service, _):
        await two_nodes(service)
        caller = Watched()
        await poll(service, caller)
        await service.execute("g", Cancel())
        await service.delete("g")
        caller.hang_up(broken=True)
