"""Environment variables that torch's agent passes on to its workers, set for a round and removed afterwards."""

import os
from collections.abc import Mapping
from typing import ClassVar


class WorkerEnvironment:
    """Variables that one handler has put into this process's environment; workers inherit them from there."""

    _newest: "ClassVar[WorkerEnvironment | None]" = None

    def __init__(self) -> None:
        self._names: set[str] = set()

    def add(self, variables: Mapping[str, str]) -> None:
        """Set variables for the workers to come."""
        os.environ.update(variables)
        self._names |= variables.keys()

    def begin(self) -> None:
        """Start with a clean environment, even if an earlier handler has not been garbage-collected yet."""
        former, WorkerEnvironment._newest = WorkerEnvironment._newest, self
        self.remove()
        if former is not None:
            former.remove()

    def remove(self) -> None:
        """Remove what was added."""
        while self._names:
            os.environ.pop(self._names.pop(), None)
