"""The client that waits for the answer to a request, and whether it is still there."""

from collections.abc import Callable


class Caller:
    """The client of an open request.

    Attributes:
        gone: whether it has hung up.
    """

    def __init__(self) -> None:
        self.gone = False
        self._call: Callable[[], None] | None = None

    def on_gone(self, call: Callable[[], None] | None) -> None:
        """Set what to call once the client is gone, in place of any earlier callback; None: nothing."""
        self._call = call

    def hang_up(self) -> None:
        """The client is gone: its connection was closed, or broke."""
        self.gone = True
        if self._call is not None:
            self._call()
