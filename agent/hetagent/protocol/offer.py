"""What a node offers its group, and the join request that carries it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from hetrdzv.protocol.bounds import MAX_NOT_READY, UNSET
from hetrdzv.protocol.requests.joining import JoinRequest, SpecFields
from hetrdzv.protocol.rooms.shares import Measured, Speeds
from hetrdzv.protocol.rooms.snapshots import Holdings


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a node offers its group; the fields are those of `JoinRequest`.

    Attributes:
        weight: None: nobody gave one.
    """

    slots: int
    address: str
    role: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    weight: float | None = None
    speeds: Speeds = ()
    measured: Measured | None = None
    snapshots: Holdings | None = None
    device: Mapping[str, str] = field(default_factory=dict)
    wants_command: bool = False
    wants_members: bool = False
    wants_daemon: bool = False
    takes_notice: bool = False
    script: str = ""
    ready_within_s: float = 0.0
    spec: SpecFields = field(default_factory=SpecFields)

    def request(
        self, incarnation: str, ports: tuple[int, int], after_round: int, not_ready: str = ""
    ) -> JoinRequest:
        """The join of a node that makes this offer.

        Args:
            ports: of the agent's store and of a store that the script opens itself.
            after_round: the newest round whose workers are gone.
            not_ready: why the node takes part in no round yet; empty: it is ready.
        """
        same = {name: getattr(self, name) for name in _SAME_IN_BOTH}
        return JoinRequest(
            incarnation=incarnation,
            port=ports[0],
            script_port=ports[1],
            after_round=after_round,
            weight=UNSET if self.weight is None else self.weight,
            not_ready=not_ready[:MAX_NOT_READY],
            **same,
        )


_SAME_IN_BOTH = [attribute.name for attribute in fields(Offer) if attribute.name != "weight"]
