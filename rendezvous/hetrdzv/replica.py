"""One server as a replica: alone on its store, or one of several of which one leads (leadership.py)."""

from dataclasses import dataclass
from typing import Literal, Protocol

from hetrdzv.service import Service


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """What a replica is among its peers.

    Attributes:
        role: `single` has no peers.
        leader: URL of the server that answers, where there are several.
    """

    role: Literal["single", "leader", "follower"]
    leader: str | None = None


class Replica(Protocol):
    """A server as those see it who want a request about groups answered."""

    def service(self) -> Service:
        """The service that answers here and now.

        Raises:
            NotLeader: another server does; says which.
            NoLeader: none does for now.
            ServerStopping: this server is going down.
        """

    def answers(self, service: Service) -> bool:
        """Whether what a service says may still be told; to be asked just before it is."""

    def status(self) -> ReplicaStatus:
        """What this server is, where requests about groups lead somewhere.

        Raises:
            ServerStopping, StorageError, NoLeader: what is in the way.
        """

    async def start(self) -> None:
        """Begin to serve, or to follow.

        Raises:
            StorageError: the store cannot be used.
        """

    def begin_stop(self) -> None:
        """Answer every open poll now, let others take over, and refuse new requests."""

    async def close(self) -> None:
        """Stop, and let the store go."""


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
        return ReplicaStatus("single")

    async def start(self) -> None:
        await self._service.start()

    def begin_stop(self) -> None:
        self._service.begin_stop()

    async def close(self) -> None:
        await self._service.close()
