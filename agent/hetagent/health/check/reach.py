"""Whether the other nodes of a group can be reached, from each interface of this node."""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetagent.health.check.findings import Finding, Grade
from hetagent.node.network import Interface, host_port
from hetagent.session.preflight import reachable
from hetrdzv.protocol.texts.addresses import is_loopback

TIMEOUT_S = 3.0
"""How long one interface may take to reach one node (seconds)."""

MOST_NODES = 64
"""So many nodes are tried at most."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node, with the address and the port that it offers; port 0: the server does not tell it."""

    node_id: str
    address: str
    port: int


async def look(peers: Sequence[Peer], interfaces: Sequence[Interface], offered: str | None) -> list[Finding]:
    """Try every peer from every interface that could lead there.

    Args:
        offered: the interface of the address that this node offers.
    """
    tried = peers[:MOST_NODES]
    findings = list(await asyncio.gather(*(_look(peer, interfaces, offered) for peer in tried)))
    if len(peers) > MOST_NODES:
        text = f"{len(peers) - MOST_NODES} more nodes were not tried"
        findings.append(Finding("other nodes", Grade.WARNING, text))
    return findings


async def _look(peer: Peer, interfaces: Sequence[Interface], offered: str | None) -> Finding:
    if not peer.port:
        return judged(peer, {}, offered)
    ways = [interface for interface in interfaces if leads_to(interface, peer.address)]
    why = await asyncio.gather(
        *(
            reachable(peer.address, peer.port, TIMEOUT_S, interface=way.name, source=way.address)
            for way in ways
        )
    )
    return judged(peer, dict(zip((way.name for way in ways), why, strict=True)), offered)


def leads_to(interface: Interface, address: str) -> bool:
    """Whether it makes sense to try an address from an interface: both are loopback or neither, of one family."""
    if is_loopback(address) != interface.is_loopback:
        return False
    is_name = not (":" in address or address.replace(".", "").isdecimal())
    return is_name or (":" in address) == (interface.family == socket.AF_INET6)


def judged(peer: Peer, why: Mapping[str, str | None], offered: str | None) -> Finding:
    """What the tries of one peer mean.

    Args:
        why: by interface, why the peer was not reached; None: it was.
        offered: the interface of the address that this node offers.
    """
    what = f"node {peer.node_id}"
    place = host_port(peer.address, peer.port)
    if not peer.port:
        return Finding(
            what,
            Grade.WARNING,
            f"not tried: the server does not say which port it listens on at {peer.address}",
        )
    if not why:
        return Finding(
            what,
            Grade.WRONG,
            f"no interface here leads to {place}",
            "start its agent with --local-addr or --interface",
        )
    text = f"{place}: " + "; ".join(f"{name} {reason or 'reaches it'}" for name, reason in why.items())
    good = [name for name, reason in why.items() if reason is None]
    if offered in good:
        return Finding(what, Grade.OK, text)
    if good and offered not in why:  # no interface here has the offered address (NAT, a name)
        return Finding(what, Grade.OK, text)
    if good:
        return Finding(what, Grade.WARNING, text, f"offer the address of {good[0]}: --interface {good[0]}")
    refused = any(reason == "connection refused" for reason in why.values())
    advice = (
        "its host answers, but not on this port: is its agent still there?"
        if refused
        else "a firewall or another network: open a range and give it as --port-range, or choose --interface"
    )
    return Finding(what, Grade.WRONG, text, advice)
