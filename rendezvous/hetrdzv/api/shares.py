"""Shares over HTTP: the route by which workers ask for others, and what people see of them."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from starlette.requests import Request

from hetrdzv.api.bound import Handlers
from hetrdzv.api.dispatch import service_of
from hetrdzv.api.problems import InvalidField
from hetrdzv.core.model import Round
from hetrdzv.core.rooms.shares import decisions
from hetrdzv.core.rooms.shares.decisions import paces_of
from hetrdzv.protocol import codec
from hetrdzv.protocol.requests.joining import JoinRequest
from hetrdzv.protocol.rooms.shares import SHARES, SharesRequest, SharesShown
from hetrdzv.service.progress.table import Seen
from hetrdzv.service.shares import decision, worked_of

handlers = Handlers()


@handlers(SHARES)
async def refresh_shares(request: Request, group_id: str, node_id: str, body: SharesRequest) -> bytes:
    """A decision on the shares of the running round, the same for all its nodes; the first who asks brings it about."""
    service = service_of(request)
    shares = await decision(service, group_id, node_id, body.incarnation, body.round, body.number)
    return codec.write(shares)


def check_speeds(body: JoinRequest) -> None:
    """Refuse a join that does not have a speed for each slot.

    Raises:
        InvalidField: it has another number of them.
    """
    if len(body.speeds) not in (0, body.slots):
        text = f"there must be one for each of the {body.slots} slots, not {len(body.speeds)}"
        raise InvalidField("speeds", text)


def of_round(current: Round, seen: Mapping[int, Seen], on_page: AbstractSet[str]) -> Mapping[str, Any]:
    """The shares of a round as they were decided last, and how fast the workers of some nodes have been since."""
    newest = decisions(current)[-1]
    known = paces_of(newest, worked_of(seen, newest.number), current.world_size) if on_page else None
    top = max(known or [1.0])
    paces = {
        rank: round(pace / top, 3) for rank, pace in enumerate(known or ()) if seen[rank].node_id in on_page
    }
    return {"shares": SharesShown(**codec.fields_of(newest), paces=paces)}
