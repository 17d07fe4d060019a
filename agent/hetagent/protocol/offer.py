"""What a node offers its group, and the join request that carries it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hetrdzv.protocol.bounds import MAX_NOT_READY, UNSET
from hetrdzv.protocol.joining import JoinRequest, SpecFields


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a node offers its group; the fields are those of `JoinRequest`.

    Attributes:
        weight: None: nobody gave one.
        speeds: of the slots, in their order; empty: they were not measured.
    """

    slots: int
    address: str
    role: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    weight: float | None = None
    speeds: tuple[float, ...] = ()
    device: Mapping[str, str] = field(default_factory=dict)
    wants_command: bool = False
    wants_members: bool = False
    wants_daemon: bool = False
    takes_notice: bool = False
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
        return JoinRequest(
            incarnation=incarnation,
            slots=self.slots,
            address=self.address,
            port=ports[0],
            script_port=ports[1],
            after_round=after_round,
            role=self.role,
            weight=UNSET if self.weight is None else self.weight,
            labels=self.labels,
            device=self.device,
            wants_command=self.wants_command,
            wants_members=self.wants_members,
            wants_daemon=self.wants_daemon,
            takes_notice=self.takes_notice,
            ready_within_s=self.ready_within_s,
            not_ready=not_ready[:MAX_NOT_READY],
            speeds=self.speeds or None,
            spec=self.spec,
        )
