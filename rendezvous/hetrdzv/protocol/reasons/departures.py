"""Why a node goes: clauses, to be put after its name."""

from hetrdzv.protocol.reasons.reason import Reason, ReasonCode, clipped, reason

_CLAUSES = {
    ReasonCode.CONNECTION_LOST: "its connection was cut",
    ReasonCode.AGENT_REPLACED: "its agent was restarted",
    ReasonCode.AGENT_DIED: "its agent died, and its workers were stopped",
    ReasonCode.NODE_DRAINED: "drained",
}


def departed(code: ReasonCode) -> Reason:
    """What needs no figures: the connection was cut, the agent was replaced or died, or a person drained the node."""
    return reason(code, _CLAUSES[code])


def lease_expired(for_s: float) -> Reason:
    """Its agent was not heard for as long as its lease."""
    return reason(ReasonCode.LEASE_EXPIRED, f"no heartbeat for {for_s:g} s")


def agent_left(text: str = "", *, leaving: bool = False) -> Reason:
    """Its agent has said that it goes (`leaving`: is about to go), and maybe why."""
    unsaid = "its agent is leaving" if leaving else "its agent left"
    return reason(ReasonCode.AGENT_LEFT, clipped(text) or unsaid, quote=text)


def bad_address(group_id: str, node_id: str, address: str) -> Reason:
    """It offers an address at which no other host of its group can reach it."""
    return reason(
        ReasonCode.BAD_ADDRESS,
        f"node '{node_id}' offers address {address}, but group '{group_id}' has nodes on other hosts: start hetagent "
        "with --local-addr or --interface",
        nodes=[node_id],
    )
