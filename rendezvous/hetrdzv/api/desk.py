"""What answers one request about groups: the service of the moment, and its open polls."""

from dataclasses import dataclass

from fastapi import Request
from starlette.types import Scope

from hetrdzv.api.polls import Polls
from hetrdzv.office import Office
from hetrdzv.service import Service

_KEY = "hetrdzv.desk"


@dataclass(frozen=True, slots=True)
class Desk:
    """A service, and the polls that are open at it."""

    service: Service
    polls: Polls


class Desks:
    """Gives every request the desk of the moment: a new one when another service answers."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._last: Desk | None = None

    def assign(self, scope: Scope) -> Scope:
        """A request's scope with a desk in it.

        Raises:
            NotLeader, NoLeader, ServerStopping: nobody answers here.
        """
        service = self._office.service()
        if self._last is None or self._last.service is not service:
            self._last = Desk(service, Polls(service))
        return {**scope, _KEY: self._last}

    def still_answers(self, scope: Scope) -> bool:
        """Whether what the desk of a request says may still be told."""
        desk = scope.get(_KEY)
        return desk is None or self._office.answers(desk.service)


def service_of(request: Request) -> Service:
    """The service that answers a request."""
    desk: Desk = request.scope[_KEY]
    return desk.service


def polls_of(request: Request) -> Polls:
    """The polls that are open where a request is answered."""
    desk: Desk = request.scope[_KEY]
    return desk.polls
