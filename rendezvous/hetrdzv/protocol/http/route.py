"""What a route is: all that server, limits, roles, document and client follow from."""

import re
from dataclasses import KW_ONLY, dataclass
from enum import Enum, IntEnum
from typing import Any, Generic, TypeVar

Reply = TypeVar("Reply")


class Role(IntEnum):
    """What a token is for; each role may also do what those before it may."""

    READ = 1
    AGENT = 2
    ADMIN = 3

    def __str__(self) -> str:
        return self.name.lower()


class Size(Enum):
    """How many such requests of one address are answered at a time (api/http/limits.py)."""

    ALWAYS = "always"
    """Health: however many."""
    SMALL = "small"
    """An agent's: small both ways, and may wait long; as many as `--max-polls-per-address` says."""
    LARGE = "large"
    """Its reply may be large: a few."""
    STREAM = "stream"
    """A few; but if it is followed as an event stream, it counts as SMALL."""


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """What a route takes in the query of its URL, or in a header.

    Attributes:
        kind: its type, with its bounds.
        default: what it is if it is not given; `...`: it has to be.
        about: what it means, for the document.
        many: it may be repeated.
        header: it is a header, with hyphens for underscores.
    """

    name: str
    kind: Any
    default: Any = ...
    about: str = ""
    many: bool = False
    header: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Route(Generic[Reply]):
    """A route.

    Attributes:
        role: the lowest that may use it; None: it is open to everybody, and tells nothing of any group.
        reply: the type of its reply; NoneType: 204, and nothing.
        body: the type of its body, if it takes one.
        needs_body: without one it is refused.
        takes: its parameters.
        scoped: it names no group, but shows only groups in the scope of the token, or none.
        hot: it is asked all the time, so the gate has it answered without Starlette, in the same way.
        page: it is for people: a browser that is signed in may use it, and errors are pages.
        once: the client never sends it twice.
        wait_s: how long the server may take to answer (seconds).
    """

    method: str
    path: str
    role: Role | None
    reply: type[Reply]
    _: KW_ONLY
    body: Any = None
    needs_body: bool = True
    takes: tuple[Parameter, ...] = ()
    size: Size = Size.LARGE
    scoped: bool = False
    hot: bool = False
    page: bool = False
    once: bool = False
    wait_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def names(self) -> list[str]:
        """What the path names, in its order."""
        return re.findall(r"\{(\w+)\}", self.path)


NODE = "/v1/groups/{group_id}/nodes/{node_id}"
"""The path of what is about one node."""
