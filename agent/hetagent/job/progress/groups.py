"""Reads which process groups a worker has made, as it notes them itself: see worker/torch_server.py."""

import os
from dataclasses import dataclass, field

SUFFIX = ".groups"
"""What the note's name has more than the socket's."""

PAIRED = "<->"
"""Begins a line that names a group in which the worker sends and receives."""

MAX_NOTE = 4 << 20
"""The longest note that is read (bytes); a group takes about 50."""


@dataclass(slots=True)
class Groups:
    """The process groups that a worker has made so far.

    Args:
        path: of the note.

    Attributes:
        known: whether there is a note. If torch's internals are not as expected, there is none.
        backends: torch's names for those that the groups have.
        names: by backend, of its groups, in the order in which they were made.
        paired: the names of those in which it has sent to or received from single members, as far as that is noted.
    """

    path: str
    known: bool = False
    backends: list[str] = field(default_factory=list)
    names: dict[str, list[str]] = field(default_factory=dict)
    paired: frozenset[str] = frozenset()
    _size: int = -1

    def read(self) -> None:
        """Read what is new. A note only ever grows."""
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != self._size:
                    self._take(file.read(MAX_NOTE))
                    self._size = size
        except (OSError, ValueError):
            self.known, self._size = False, -1

    def _take(self, note: bytes) -> None:
        self.names, paired = {}, set()
        for line in note.decode().split("\n")[:-1]:
            name, *backends = line.split("\t")
            if name == PAIRED:
                paired.update(backends)
                continue
            for backend in backends:
                self.names.setdefault(backend, []).append(name)
        self.backends, self.paired, self.known = list(self.names), frozenset(paired), True
