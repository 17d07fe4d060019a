"""Why a node goes: clauses, to be put after its name."""

from hetrdzv.protocol.reasons.reason import Reason, ReasonCode, clipped, reason


def lease_expired(for_s: float) -> Reason:
    """Its agent was not heard for as long as its lease."""
    return reason(ReasonCode.LEASE_EXPIRED, f"no heartbeat for {for_s:g} s", lease_s=for_s)


def connection_lost() -> Reason:
    """Its connection was cut, and it did not come back."""
    return reason(ReasonCode.CONNECTION_LOST, "its connection was cut")


def agent_replaced() -> Reason:
    """Another agent took over its node id."""
    return reason(ReasonCode.AGENT_REPLACED, "its agent was restarted")


def agent_left(text: str = "", *, leaving: bool = False) -> Reason:
    """Its agent has said that it goes (`leaving`: is about to go), and maybe why."""
    unsaid = "its agent is leaving" if leaving else "its agent left"
    return reason(ReasonCode.AGENT_LEFT, clipped(text) or unsaid, quote=text)


def agent_died() -> Reason:
    """Its agent died, and its guardian has stopped the workers."""
    return reason(ReasonCode.AGENT_DIED, "its agent died, and its workers were stopped")


def drained() -> Reason:
    """A person took it out."""
    return reason(ReasonCode.NODE_DRAINED, "drained")


def bad_address(group_id: str, node_id: str, address: str) -> Reason:
    """It offers an address at which no other host of its group can reach it."""
    return reason(
        ReasonCode.BAD_ADDRESS,
        f"node '{node_id}' offers address {address}, but group '{group_id}' has nodes on other hosts: start hetagent "
        "with --local-addr or --interface",
        nodes=[node_id],
        address=address,
    )
