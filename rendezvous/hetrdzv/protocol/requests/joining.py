"""What a node says when it joins, and the settings of a group that come with that or with `PUT`."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Le, MaxLen, MinLen
from typing_extensions import TypedDict

from hetrdzv.protocol.bounds import (
    MAX_NOT_READY,
    Body,
    Count,
    Duration,
    Id,
    Labels,
    Port,
    ShortText,
    Slots,
    Weight,
)
from hetrdzv.protocol.settings import DAY_S, SETTINGS
from hetrdzv.protocol.snapshots import Holdings

if TYPE_CHECKING:
    SpecFields = dict[str, Any]
else:
    SpecFields = TypedDict("SpecFields", {one.name: one.kind for one in SETTINGS.values()}, total=False)
    SpecFields.__doc__ = "Settings of a group (protocol/settings.py). One that is not given is not compared."
    SpecFields.__pydantic_config__ = Body.__pydantic_config__


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer(Body):
    """What a node brings into a group when it joins.

    Attributes:
        slots: workers that the node offers; all of them are used, or none.
        address, port, script_port: where the node's store listens, and the port that it holds for a script.
        weight: how fast each slot is, compared with those of other nodes: if any node of a round was given one, shares
            go by it. None: nobody gave one.
        labels, device: what ranks and master can go by, and what people see besides.
        wants_command: the agent was started without a script and runs the group's command.
        wants_members: its `start` lists all members of the round.
        wants_daemon: it runs the launcher's daemon that the master of its round hands it.
        takes_notice: the node tells its workers that their round is about to end, and reports `ready_to_stop`.
        script: what its workers run, by name; other nodes of its role run the same. Empty: nobody compares it.
        ready_within_s: how long the node may take from the end of its workers until it is ready, since its agent checks
            it first (seconds); the others wait that much longer for it.
        not_ready: why the node takes part in no round yet, though its workers are gone; empty: it is ready.
    """

    slots: Slots
    address: Annotated[str, MinLen(1), MaxLen(253)]
    port: Port
    script_port: Annotated[Count, Le(65_535)] = 0
    role: Id = "default"
    weight: Weight | None = None
    snapshots: Holdings | None = None
    labels: Labels = field(default_factory=dict)
    device: Labels = field(default_factory=dict)
    wants_command: bool = False
    wants_members: bool = False
    wants_daemon: bool = False
    takes_notice: bool = False
    script: ShortText = ""
    ready_within_s: Annotated[Duration, Le(DAY_S)] = 0.0
    not_ready: Annotated[str, MaxLen(MAX_NOT_READY)] = ""

    @property
    def speed(self) -> float:
        """Its weight, or the default."""
        return 1.0 if self.weight is None else self.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest(Offer):
    """`PUT /v1/groups/{g}/nodes/{n}`: join, or declare the node ready for the next round.

    Attributes:
        after_round: newest round whose workers this agent has stopped, with no process left (0 at first).
        stopped: why its agent stopped the workers of a round that would go on, as what comes after "the round, which";
            empty: it does not say.
        spec: the settings of the group that the agent was given.
    """

    incarnation: Id
    after_round: Count = 0
    stopped: Annotated[str, MaxLen(MAX_NOT_READY)] = ""
    spec: SpecFields = field(default_factory=dict)
