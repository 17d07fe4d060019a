"""A plan: what is supposed, and what would happen."""

from dataclasses import dataclass
from typing import Annotated

from hetrdzv.protocol.bounds import Body, Id, OrNewer
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.states import GroupState


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes(Body):
    """`POST /v1/groups/{g}/plan`: what a plan supposes."""

    drain: Id | None = None
    restart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would happen."""

    state: Annotated[GroupState | str, OrNewer()]
    reason: Reason
    clock: float
    in_s: float
    round: int
    world_size: int
    was_round: int
    was_world_size: int
    restarts: int
    members: tuple[Member, ...]
    spares: tuple[str, ...]
    stops: tuple[str, ...]
    restarted: tuple[str, ...]
    moves: tuple[str, ...]
