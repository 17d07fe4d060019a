"""A server as one replica: alone on its store, or one of several of which one leads (leadership.py)."""

from dataclasses import dataclass
from typing import Literal, Protocol

from hetrdzv.service.service import Service


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """What a replica is among its peers.

    Attributes:
        role: `single` has no peers.
        leader: URL of the server that answers, if there are several.
        degraded: whether its last commit failed: it serves what is committed, and refuses changes.
    """

    role: Literal["single", "leader", "follower"]
    leader: str | None = None
    degraded: bool = False


class Replica(Protocol):
    """What the API needs to know of the server it runs in."""

    def service(self) -> Service:
        """The service that answers requests about groups; raises NotLeader, NoLeader, ServerStopping."""

    def answers(self, service: Service) -> bool:
        """Whether a reply of this service may still be sent; ask right before sending it."""

    def status(self) -> ReplicaStatus:
        """Its role, if requests are answered or redirected; else raises ServerStopping, StorageError, NoLeader."""

    async def start(self) -> None:
        """Begin to serve, or to follow; raises StorageError."""

    def begin_stop(self) -> None:
        """Answer every open poll now, let other servers take over, and refuse new requests."""

    async def close(self) -> None:
        """Stop, and close the store."""


class SingleReplica:
    """A server that has its store to itself.

    Args:
        service: started and closed by this.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def service(self) -> Service:
        return self._service

    def answers(self, service: Service) -> bool:
        return True

    def status(self) -> ReplicaStatus:
        self._service.require_ready()
        return ReplicaStatus("single", degraded=self._service.is_failing)

    async def start(self) -> None:
        await self._service.start()

    def begin_stop(self) -> None:
        self._service.begin_stop()

    async def close(self) -> None:
        await self._service.close()
