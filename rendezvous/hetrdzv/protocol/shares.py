"""What an agent says when its workers ask for other shares of the work."""

from dataclasses import dataclass

from hetrdzv.protocol.bounds import Body, Id, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesRequest(Body):
    """`POST /v1/groups/{g}/nodes/{n}/shares`: the node's workers ask for a decision on the shares of their round.

    Attributes:
        number: of the decision, counted from 1 in each round. The first who asks for it brings it about.
    """

    incarnation: Id
    round: Positive
    number: Positive
