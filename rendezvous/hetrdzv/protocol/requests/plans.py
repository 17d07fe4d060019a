"""A plan: what is supposed, and what would happen."""

from dataclasses import dataclass
from typing import Annotated

from hetrdzv.protocol.bounds import Body, Id, OrNewer
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.states import GroupState


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes(Body):
    """`POST /v1/groups/{g}/plan`: what a plan supposes.

    Attributes:
        drain: a node that a person takes out.
        restart: a person ends the round, or restarts a finished group.
    """

    drain: Id | None = None
    restart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would happen.

    Attributes:
        state, reason: where the group would be then, and why.
        clock: what the server's clock would read then (seconds).
        in_s: how long that would take by the group's own waits (seconds), without what workers take to save and stop.
        round, world_size: of the round that would run; 0: none would.
        was_round, was_world_size: of the newest round so far; 0: there was none.
        restarts: how many restarts the job would have used.
        members: of that round, in rank order: the master first.
        spares: node ids of the others that would be here.
        stops: node ids whose workers run now and would be stopped for good.
        restarted: node ids whose workers run now and would be restarted.
        moves: node ids of both rounds whose ranks would be others.
    """

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
