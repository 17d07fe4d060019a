"""Whom a change wakes, and how many at once."""

import asyncio
from dataclasses import replace

from hetrdzv.service.polls.watchers import AT_ONCE, Caller, Watchers
from tests.core.driver import running


async def test_many_are_woken_over_several_turns_in_the_order_in_which_they_came() -> None:
    watchers = Watchers()
    woken: list[int] = []

    async def wait(number: int) -> None:
        await watchers.wait("g", f"n{number}", 60.0, Caller())
        woken.append(number)

    many = 3 * AT_ONCE + 1
    async with asyncio.TaskGroup() as tasks:
        for number in range(many):
            tasks.create_task(wait(number))
        await asyncio.sleep(0)
        names = [f"n{number}" for number in range(many)]
        watchers.wake("g", names)
        watchers.wake("g", names)  # nobody twice
        seen = 0
        while len(woken) < many:
            await asyncio.sleep(0)
            assert len(woken) - seen <= AT_ONCE
            seen = len(woken)
    assert woken == list(range(many))
    assert watchers.count() == 0


async def test_a_change_of_a_node_concerns_it_and_those_that_have_left() -> None:
    """Whether one that has left has to go on serving its snapshots depends on the others."""
    watchers = Watchers()
    story = running("a", "b", "c")
    story.leave("b")
    before = story.group
    waiting = {name: asyncio.ensure_future(watchers.wait("g", name, 60.0, Caller())) for name in "abc"}
    await asyncio.sleep(0)
    watchers.wake_nodes("g", before, before.with_node(replace(before.nodes["a"], slots=2)))
    await asyncio.sleep(0.01)
    assert [name for name, poll in waiting.items() if poll.done()] == ["a", "b"]
    waiting["c"].cancel()
