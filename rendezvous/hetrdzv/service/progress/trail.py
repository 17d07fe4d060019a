"""Which steps a job has made over the last hour, for a line on its page."""

from collections import deque
from typing import NamedTuple

EVERY_S = 30.0
"""A point is kept for each stretch of time of this length (seconds)."""

KEPT_S = 3600.0
"""Older points are forgotten (seconds)."""


class Point(NamedTuple):
    """How far a job had come at a moment.

    Attributes:
        at: seconds on the server's clock.
        round: that its workers were in.
        step: the highest that a script had told.
    """

    at: float
    round: int
    step: int


class Trail:
    """The points of one job, in order."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque()

    def __len__(self) -> int:
        return len(self._points)

    def note(self, point: Point) -> None:
        """Some workers have told how far they are; one that is behind others, or late, says nothing new."""
        last = self._points[-1] if self._points else None
        if last is not None and (point.at < last.at or point.round < last.round):
            return
        if last is not None and point.at // EVERY_S == last.at // EVERY_S:
            if point[1:] <= last[1:]:
                return
            self._points.pop()
        self._points.append(point)
        while self._points[0].at < point.at - KEPT_S:
            self._points.popleft()

    @property
    def points(self) -> tuple[Point, ...]:
        """All of them."""
        return tuple(self._points)
