"""What the client knows of a route."""

import re
from dataclasses import KW_ONLY, dataclass
from typing import Generic, TypeVar

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True, eq=False)
class Route(Generic[Reply]):
    """A route."""

    method: str
    path: str
    reply: type[Reply]
    _: KW_ONLY
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
