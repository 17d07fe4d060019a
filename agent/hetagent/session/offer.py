"""What a node offers its group, and the join request that carries it."""

from dataclasses import dataclass

from hetrdzv.protocol import codec
from hetrdzv.protocol.bounds import MAX_NOT_READY
from hetrdzv.protocol.requests.joining import JoinRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer(JoinRequest):
    """What a node offers its group: a join, without what each of its joins says anew."""

    incarnation: str = ""
    port: int = 0

    def request(
        self, incarnation: str, ports: tuple[int, int], after_round: int, not_ready: str = ""
    ) -> JoinRequest:
        """The join of a node that makes this offer.

        Args:
            ports: of the agent's store and of a store that the script opens itself.
            after_round: the newest round whose workers are gone.
            not_ready: why the node takes part in no round yet; empty: it is ready.
        """
        return codec.picked(
            JoinRequest,
            self,
            incarnation=incarnation,
            port=ports[0],
            script_port=ports[1],
            after_round=after_round,
            not_ready=not_ready[:MAX_NOT_READY],
            stopped=self.stopped[:MAX_NOT_READY],
        )
