"""A plan: what is supposed, and what would happen."""

from dataclasses import dataclass, field
from typing import Annotated

from hetrdzv.protocol.bounds import MAX_PLANNED, AtMost, Body, Id, Labels, OrNewer, Slots, Weight
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.states import GroupState

# -- what is supposed ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNode(Body):
    """A node that a plan adds.

    Attributes:
        node_id: that of a node that is gone: it comes back; None: one that goes last is made up.
        labels, weight: empty and None: what the node had when it was here.
    """

    slots: Slots
    node_id: Id | None = None
    labels: Labels = field(default_factory=dict)
    weight: Weight | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes(Body):
    """`POST /v1/groups/{g}/plan`: what a plan supposes; all of it happens at once.

    Attributes:
        remove: node ids of nodes that are lost, or whose agents are stopped.
        drain: node ids of nodes that a person takes out.
        add: nodes that join.
        restart: a person ends the round, or restarts a finished group.
    """

    remove: Annotated[tuple[Id, ...], AtMost(MAX_PLANNED)] = ()
    drain: Annotated[tuple[Id, ...], AtMost(MAX_PLANNED)] = ()
    add: Annotated[tuple[NewNode, ...], AtMost(MAX_PLANNED)] = ()
    restart: bool = False


# -- what would happen ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMember:
    """A node's place in the round that would run; `was_offset` is its rank offset in the last one, if it was in it."""

    node_id: str
    group_rank: int
    rank_offset: int
    slots: int
    was_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutNode:
    """A node that would be in no round.

    Attributes:
        reason: why it would be a spare, or gone; None: no round would run.
    """

    node_id: str
    slots: int
    reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would happen.

    Attributes:
        now: why the group stands where it stands now.
        state, reason: where it would be then, and why.
        clock: what the server's clock would read then (seconds).
        in_s: how long that would take by the group's own waits (seconds), without what workers take to save and stop.
        ended: what would end the round that runs now; None: it would go on, or none runs.
        round, world_size: of the round that would run; 0: none would.
        was_round, was_world_size: of the newest round so far; 0: there was none.
        restarts: how many restarts the job would have used.
        master: the node id of that round's master; None without one.
        members: in rank order.
        spares: the other nodes that would be here. Where no round would run, all of them, each without a reason.
        gone: the nodes that are here, or join, and would be gone.
        stops: node ids whose workers run now and would be stopped for good.
        restarted: node ids whose workers run now and would be restarted.
        moves: node ids of both rounds whose ranks would be others.
    """

    group_id: str
    now: Reason
    state: Annotated[GroupState | str, OrNewer()]
    reason: Reason
    clock: float
    in_s: float
    ended: Reason | None = None
    round: int
    world_size: int
    was_round: int
    was_world_size: int
    restarts: int
    master: str | None = None
    members: tuple[PlannedMember, ...]
    spares: tuple[LeftOutNode, ...]
    gone: tuple[LeftOutNode, ...]
    stops: tuple[str, ...]
    restarted: tuple[str, ...]
    moves: tuple[str, ...]
