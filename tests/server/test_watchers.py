"""Whom a change wakes, and how many at once."""

import asyncio

from hetrdzv.service.polls.watchers import AT_ONCE, Caller, Watchers


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
