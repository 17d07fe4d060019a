"""Which service answers a request about groups: that of the moment, with the polls that are open at it."""

from fastapi import Request
from starlette.types import Scope

from hetrdzv.api.polls import Polls
from hetrdzv.replica import Replica
from hetrdzv.service import Service

_KEY = "hetrdzv.polls"


class Dispatcher:
    """Gives every request the service of the moment, and new polls when that is another one."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._polls: Polls | None = None

    def assign(self, scope: Scope) -> Scope:
        """A request's scope with the polls in it that it may join.

        Raises:
            NotLeader, NoLeader, ServerStopping: nobody answers here.
        """
        service = self._replica.service()
        if self._polls is None or self._polls.service is not service:
            self._polls = Polls(service)
        return {**scope, _KEY: self._polls}

    def still_answers(self, scope: Scope) -> bool:
        """Whether what the service of a request says may still be told."""
        polls: Polls | None = scope.get(_KEY)
        return polls is None or self._replica.answers(polls.service)


def polls_of(request: Request) -> Polls:
    """The polls that are open where a request is answered."""
    polls: Polls = request.scope[_KEY]
    return polls


def service_of(request: Request) -> Service:
    """The service that answers a request."""
    return polls_of(request).service
