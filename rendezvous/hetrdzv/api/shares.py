"""What people see of the shares of a round."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from hetrdzv.core.model import Round
from hetrdzv.core.rooms.shares import decisions
from hetrdzv.core.rooms.shares.decisions import paces_of
from hetrdzv.protocol import codec
from hetrdzv.protocol.rooms.shares import SharesShown
from hetrdzv.service.progress.table import Seen
from hetrdzv.service.shares import worked_of


def of_round(current: Round, seen: Mapping[int, Seen], on_page: AbstractSet[str]) -> SharesShown:
    """The shares of a round as they were decided last, and how fast the workers of some nodes have been since."""
    newest = decisions(current)[-1]
    known = paces_of(newest, worked_of(seen, newest.number), current.world_size) if on_page else None
    top = max(known or [1.0])
    paces = {
        rank: round(pace / top, 3) for rank, pace in enumerate(known or ()) if seen[rank].node_id in on_page
    }
    return SharesShown(**codec.fields_of(newest), paces=paces)
