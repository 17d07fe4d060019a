"""The client at the other end of a connection, and whether it is still there."""

from collections.abc import Callable


class Caller:
    """The client of an open request.

    Attributes:
        gone: whether its connection is lost.
        lease_s: how long it may be silent after the last answer that it was watched for (seconds); 0: there was none.
    """

    def __init__(self) -> None:
        self.gone = False
        self.lease_s = 0.0
        self._call: Callable[[], None] | None = None
        self._on_break: Callable[[], None] | None = None

    def watch(self, within_s: float) -> bool:
        """Ask the kernel to notice within so many seconds if the client's host is gone; returns whether it can."""
        return False

    def on_gone(self, call: Callable[[], None] | None) -> None:
        """Set what to call once the client is gone, in place of any earlier callback; None: nothing."""
        self._call = call

    def answering(self, on_break: Callable[[], None], lease_s: float) -> None:
        """A watched client is about to be answered, and will ask again: its connection tells of its host until then.

        Args:
            on_break: called, from now on, if the connection breaks, instead of being closed by either end.
            lease_s: without a heartbeat for this long it is lost (seconds).
        """
        self._on_break = on_break
        self.lease_s = lease_s

    def hang_up(self, *, broken: bool = False) -> None:
        """The client is gone: its connection was closed, or broke."""
        self.gone = True
        if self._call is not None:
            self._call()
        if broken and self._on_break is not None:
            self._on_break()
