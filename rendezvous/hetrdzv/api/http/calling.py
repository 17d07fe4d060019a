"""What is known of the client of an open request: whether it showed a certificate, and whether it is gone."""

from starlette.types import Scope

from hetrdzv.service.liveness.caller import Caller

CALLER = "hetrdzv.caller"
"""In the `state` of a request's scope: the `Caller` of its connection (connections.py)."""

CERTIFIED = "hetrdzv.certified"
"""In the `state` of a request's scope: whether its connection showed a trusted client certificate."""

ACCEPT = "hetrdzv.accept"
"""In the `state` of a request's scope: called once the request is whole and allowed (places.py)."""


def calling(scope: Scope) -> Caller:
    """The client of a request; our connections tell it when they are lost."""
    known: Caller | None = scope.get("state", {}).get(CALLER)
    return known if known is not None else Caller()
