"""The two ports that a node offers for the next round: its store's, and that of a store the script opens itself."""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hetagent.workers.store import HetRendezvousHandler


class Ports:
    """Holds both ports open from the moment they are offered until a round uses them.

    Args:
        handler: holds the store's port, and hosts the store of a round whose master this node is.
        hold: opens a listening socket for the script's port.
        moved: whether this node has another address to offer now, so that both ports are held where nobody finds them.

    Attributes:
        script: the socket that holds the script's port; None once a round has used it.
    """

    def __init__(
        self,
        handler: "HetRendezvousHandler",
        hold: Callable[[], socket.socket],
        moved: Callable[[], bool] = lambda: False,
    ) -> None:
        self.script: socket.socket | None = None
        self._handler = handler
        self._hold = hold
        self._moved = moved

    def offer(self) -> tuple[int, int]:
        """The store's port and the script's port for the next round; ends the store of the last one.

        Raises:
            NetworkError: there is no free port.
        """
        if self._moved():
            self.close()
        self._handler.release()
        if self.script is None:
            self.script = self._hold()
        return self._handler.offer(), self.script.getsockname()[1]

    def close(self) -> None:
        """Give both up, and end the store of the last round."""
        self._handler.shutdown()
        if self.script is not None:
            self.script.close()
            self.script = None
