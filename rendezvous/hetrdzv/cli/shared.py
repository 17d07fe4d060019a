"""Stores that several servers share, of which one leads: all that hetserver knows of them."""

import dataclasses
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hetrdzv.cli.sockets import CannotServe
from hetrdzv.service.replica import Replica
from hetrdzv.service.service import Service
from hetrdzv.settings import Settings
from hetrdzv.storage.base import StateStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What a server on such a store is told.

    Attributes:
        url: of the store.
        flags: those that go with it.
        make_service: makes the service of a term from its store.
        listener: where this server listens.
    """

    url: str
    flags: Any
    settings: Settings
    make_service: Callable[[StateStore], Service]
    listener: socket.socket


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStore:
    """A kind of store that several servers share.

    Attributes:
        scheme: of its URLs.
        example: such a URL.
        flags: a dataclass of the flags that go with it (settings.py).
        elected: makes what one of the servers is among the others.
    """

    scheme: str
    example: str
    flags: type
    elected: Callable[[Shared], Callable[[], Replica]]

    def names(self, url: str) -> bool:
        """Whether a URL is of this kind."""
        return url.startswith(f"{self.scheme}:")

    def given(self, values: Mapping[str, Any]) -> Any:
        """Its flags out of all values."""
        return self.flags(
            **{setting.name: values[setting.name] for setting in dataclasses.fields(self.flags)}
        )

    def refuse(self, values: Mapping[str, Any]) -> None:
        """Check that none of its flags were given, since another store was.

        Raises:
            CannotServe: one was.
        """
        for setting in dataclasses.fields(self.flags):
            if setting.default is None and values[setting.name]:
                flag = f"--{setting.name.replace('_', '-')}"
                raise CannotServe(
                    f"{flag} is for several servers on {self.scheme}: give --store {self.example}"
                )
