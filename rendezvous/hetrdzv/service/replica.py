"""What the API needs to know of the server it runs in: alone on its store, or one of several (leadership.py)."""

from typing import Protocol

from hetrdzv.protocol.pages import ReadyReply
from hetrdzv.service.service import Service


class Replica(Protocol):
    """A server, perhaps among others. A `Service` is one that is alone."""

    def service(self) -> Service:
        """The service that answers requests about groups; raises NotLeader, NoLeader, ServerStopping."""

    def answers(self, service: Service) -> bool:
        """Whether a reply of this service may still be sent; ask right before sending it."""

    def status(self) -> ReadyReply:
        """Its role, if requests are answered or redirected; else raises ServerStopping, StorageError, NoLeader."""

    async def start(self) -> None:
        """Begin to serve, or to follow; raises StorageError."""

    def begin_stop(self) -> None:
        """Answer every open poll now, let other servers take over, and refuse new requests."""

    async def close(self) -> None:
        """Stop, and close the store."""
