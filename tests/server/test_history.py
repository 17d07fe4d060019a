"""The numbered history of a group, and following it, also when the group is deleted and made again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hetrdzv.client import Client
from hetrdzv.core.commands import Cancel
from hetrdzv.protocol.pages import Event
from hetrdzv.protocol.requests.joining import SpecFields
from hetrdzv.service import ledger
from hetrdzv.service.history import Place, follow, life_of
from hetrdzv.service.service import Service
from tests.support.served import FaultyStore, api, join, serving, settled, two_nodes
from tests.support.servers import Hetserver

WAIT_S = 20.0
"""How long a follower of these tests may wait: none should."""

START = Place(0)

News = AsyncIterator[tuple[Place, Event] | None]


async def numbers(following: News, count: int) -> list[int]:
    """The numbers of the next few events."""
    found = [await anext(following) for _ in range(count)]
    return [news[1].number for news in found if news is not None]


async def made_anew(service: Service, nodes: int) -> Place:
    """Delete group g and have another made under its name; returns where a follower of the first one was."""
    old = service.group("g")
    place = Place(service.history("g")[1], life_of(old))
    await service.execute("g", Cancel())
    await service.delete("g")
    for n in range(nodes):
        await service.execute("g", join(f"new{n}", min_nodes=100))
    return place


async def test_history_is_numbered_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "EVENTS_KEPT", 5)
    async with serving() as (service, store):
        for i in range(8):
            await service.execute("g", join(f"n{i}", min_nodes=100))
        events, last = service.history("g")
        assert ([stored.number for stored in events], last) == ([4, 5, 6, 7, 8], 8)
        assert len([key for key in store.keys if "/events/" in key]) == 5
        assert service.history("g", 7)[0] == events[-1:]
        assert service.history("g", 8)[0] == []


async def test_a_follower_hears_of_quiet_times_and_then_of_news() -> None:
    async with serving() as (service, _):
        await service.execute("g", join("a", min_nodes=3))
        following = follow(service, "g", START, 0.01)
        assert await numbers(following, 1) == [1]
        assert await anext(following) is None
        await service.execute("g", join("b"))
        assert await numbers(following, 1) == [2]
        await following.aclose()


async def test_a_follower_goes_on_behind_its_place() -> None:
    async with serving() as (service, _):
        group = await two_nodes(service)
        for place in (Place(2), Place(2, life_of(group))):
            following = follow(service, "g", place, WAIT_S)
            assert await numbers(following, 2) == [3, 4]
            await following.aclose()


async def test_who_followed_a_longer_history_of_a_deleted_group_gets_everything() -> None:
    async with serving() as (service, _):
        await two_nodes(service)
        assert service.history("g", 1000) == ([], service.history("g")[1])
        following = follow(service, "g", Place(1000), WAIT_S)
        assert await numbers(following, 1) == [1]
        await following.aclose()


async def test_who_followed_a_shorter_history_of_a_deleted_group_gets_everything() -> None:
    async with serving() as (service, _):
        await service.execute("g", join("a", min_nodes=2))
        place = await made_anew(service, 5)
        assert service.history("g")[1] > place.number
        following = follow(service, "g", place, WAIT_S)
        assert await numbers(following, 5) == [1, 2, 3, 4, 5]
        await following.aclose()


async def test_following_ends_when_the_group_is_made_anew_while_the_follower_is_slow() -> None:
    async with serving() as (service, _):
        await two_nodes(service)
        last = service.history("g")[1]
        following = follow(service, "g", START, WAIT_S)
        await numbers(following, last)
        await made_anew(service, last + 2)
        with pytest.raises(StopAsyncIteration):
            await anext(following)


async def streamed(store: FaultyStore, last_event_id: str | None = None) -> list[Place]:
    """The ids of the events that the route streams, on a server of its own that stops when it has told everything."""
    headers = {"Accept": "text/event-stream"}
    if last_event_id is not None:
        headers["Last-Event-ID"] = last_event_id
    async with serving(FaultyStore(await store.load())) as (service, _), api(service) as client:
        asking = asyncio.ensure_future(client.get("/v1/groups/g/events", headers=headers))
        while not service.waiting():
            await settled()
        service.begin_stop()
        first, *events = (await asking).text.removesuffix("\n\n").split("\n\n")
        assert first.startswith("id: "), "a stream begins with the place that it starts from"
        return [Place.parse(event.partition("\n")[0].removeprefix("id: ")) for event in events]


async def test_the_ids_of_a_stream_lead_back_to_their_place_and_no_other_group() -> None:
    """By the route: the `id` of an event comes back as `Last-Event-ID`; a number alone is taken, too."""
    async with serving() as (service, store):
        await service.execute("g", join("a", min_nodes=2))
        (first,) = await streamed(store)
        assert first == Place(1, life_of(service.group("g")))
        await service.execute("g", join("b"))
        for place in (str(first), "1"):
            assert [one.number for one in await streamed(store, place)] == [2]
        await made_anew(service, 4)
        assert [one.number for one in await streamed(store, str(first))] == [1, 2, 3, 4]
        assert [one.number for one in await streamed(store, "1")] == [2, 3, 4]


@pytest.mark.parametrize("text", ["", "-1", "x", "1@", "@2", "1@x", "1 ", "1.5", "9" * 19])
async def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a place"):
        Place.parse(text)
    async with serving() as (service, _), api(service) as client:
        await service.execute("g", join("a", min_nodes=2))
        answer = await client.get("/v1/groups/g/events", headers={"Last-Event-ID": text})
        assert (answer.status_code, answer.json()["field"]) == (422, "last-event-id")


class HeldClient(Client):
    """A client whose requests wait while `may_send` is not set.

    Attributes:
        answered: set when an answer has begun.
    """

    def __init__(self, servers: list[str]) -> None:
        super().__init__(servers)
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.answered = asyncio.Event()

    async def _send(self, *args: Any, **more: Any) -> Any:
        await self.may_send.wait()
        response = await super()._send(*args, **more)
        self.answered.set()
        return response


@pytest.mark.parametrize(("seen", "events"), [(0, 1), (0, 2), (0, 3), (2, 1), (2, 2), (2, 3)])
async def test_a_client_that_reconnects_to_a_group_made_again_gets_all_of_it(
    tmp_path: Path, seen: int, events: int
) -> None:
    """However many events it has, and whether the client has read events of the old one in its stream or not."""
    with Hetserver(f"sqlite:{tmp_path / 'state.db'}") as server:
        async with Client([server.url]) as other, HeldClient([server.url]) as client:
            await other.put("g", SpecFields())
            await other.cancel("g")
            history = client.follow("g", seen)
            assert [(await anext(history)).number for _ in range(2 - seen)] == [*range(seen + 1, 3)]
            following = asyncio.ensure_future(anext(history))
            async with asyncio.timeout(WAIT_S):
                await client.answered.wait()
                client.may_send.clear()
                await other.delete("g")
                await other.put("g", SpecFields())
                if events > 1:
                    await other.cancel("g")
                if events > 2:
                    await other.restart("g")
                client.may_send.set()
                found = [await following, *[await anext(history) for _ in range(events - 1)]]
            assert [event.number for event in found] == [*range(1, events + 1)]
