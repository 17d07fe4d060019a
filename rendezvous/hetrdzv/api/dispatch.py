"""Finds the service that answers a request about groups, with its open polls."""

from starlette.requests import Request
from starlette.types import Scope

from hetrdzv.service.polls.polls import Polls
from hetrdzv.service.replica import Replica
from hetrdzv.service.service import Service

_KEY = "hetrdzv.polls"


class Dispatcher:
    """Gives every request the service that answers right now; another service has polls of its own."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._polls: Polls | None = None

    def assign(self, scope: Scope) -> None:
        """Put the polls of the service that answers a request into its ASGI scope.

        Raises:
            NotLeader, NoLeader, ServerStopping: no service answers here.
        """
        service = self._replica.service()
        if self._polls is None or self._polls.service is not service:
            self._polls = Polls(service)
        scope[_KEY] = self._polls

    def still_answers(self, scope: Scope) -> bool:
        """Whether a reply of the service of a request may still be sent."""
        polls: Polls | None = scope.get(_KEY)
        return polls is None or self._replica.answers(polls.service)


def polls_of(request: Request) -> Polls:
    """The open polls of the service that answers a request."""
    polls: Polls = request.scope[_KEY]
    return polls


def service_of(request: Request) -> Service:
    """The service that answers a request."""
    return polls_of(request).service
