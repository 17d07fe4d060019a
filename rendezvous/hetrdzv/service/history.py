"""The history of a group as it grows, and the places in it that a follower keeps over a reconnection."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self

from hetrdzv.core.model import Group
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.pages import Event
from hetrdzv.protocol.texts.ids import PLACE_PATTERN
from hetrdzv.service.polls.watchers import FOLLOWERS
from hetrdzv.service.service import Service


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the history of a group: right behind the event `number`.

    Attributes:
        life: which group of this name the number counts in, see `life_of`; None: the present one.
    """

    number: int
    life: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """From its written form.

        Raises:
            ValueError: it does not match `PLACE_PATTERN`.
        """
        if not re.fullmatch(PLACE_PATTERN, text):
            raise ValueError(f"'{text}' is not a place in a history")
        number, _, life = text.partition("@")
        return cls(int(number), int(life) if life else None)

    def within(self, group: Group, last: int) -> "Place":
        """This place in the group that has the name now; its beginning if this is a place in another group.

        Args:
            last: the number of the group's last event.
        """
        life = life_of(group)
        return Place(self.number if self.life in (None, life) and self.number <= last else 0, life)

    def __str__(self) -> str:
        return f"{self.number}" if self.life is None else f"{self.number}@{self.life}"


def life_of(group: Group) -> int:
    """Tells a group from a deleted one of the same name, whose events were numbered from 1 as well.

    When the group was made, in microseconds of the server's clock: stored with the group, so the same on every server.
    """
    return round(group.created_at * 1e6)


async def follow(
    service: Service, group_id: str, after: Place, quiet_s: float
) -> AsyncIterator[tuple[Place, Event] | None]:
    """The history of a group as it grows, each event with its place; None after `quiet_s` seconds without any.

    Ends with the group, also if another one is made under its name: its followers start again there.

    Args:
        after: where to start; everything is new if it is a place in another group of this name.
    """
    life: int | None = None
    number = after.number
    while not service.stopping:
        try:
            group = service.group(group_id)
        except HetError:
            return
        news, last = service.history(group_id, number)
        if life is None:
            place = after.within(group, last)
            life, number = place.life, place.number
            continue
        if life_of(group) != life:
            return
        for stored in news:
            yield Place(stored.number, life), stored
        number = last
        if not news and not await service.wait(group_id, FOLLOWERS, quiet_s):
            yield None
