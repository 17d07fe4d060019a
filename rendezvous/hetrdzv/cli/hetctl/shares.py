"""How people are shown the shares of a round."""

from hetrdzv.protocol.wire import RoundReply

MOST = 5
"""How many nodes are named."""

_SOURCES = {"by hand": "by hand (--weight)", "measured": "by measured speed", "pace": "by the workers' pace"}


def shares_of(current: RoundReply) -> str:
    """Where the shares of a round come from, and what they are; empty if all are the same and nobody asked."""
    shares = current.shares
    if shares is None or (shares.source == "equal" and not shares.number):
        return ""
    where = _SOURCES.get(shares.source, shares.source)
    asked = f", decision {shares.number} of this round" if shares.number else ""
    parts = []
    for member in [member for member in current.members if member.weights][:MOST]:
        least, most = min(member.weights or ()), max(member.weights or ())
        parts.append(f"{member.node_id} {least:g}{f' to {most:g}' if least < most else ''}")
    more = ", ..." if len(current.members) > MOST else ""
    return f"{where}{asked}: {', '.join(parts)}{more}" if parts else f"{where}{asked}: the same for all ranks"
