"""The client at the other end of a connection, and whether it is still there."""

from collections.abc import Callable


class Caller:
    """The client of an open request.

    Attributes:
        gone: whether its connection is lost.
    """

    def __init__(self) -> None:
        self.gone = False
        self._call: Callable[[], None] | None = None

    def watch(self, within_s: float) -> bool:
        """Ask the kernel to notice within so many seconds that the client's host is gone; returns whether it can."""
        return False

    def on_gone(self, call: Callable[[], None] | None) -> None:
        """Set what to call once the client is gone, in place of any earlier callback; None: nothing."""
        self._call = call

    def hang_up(self) -> None:
        """The client is gone."""
        self.gone = True
        if self._call is not None:
            self._call()
