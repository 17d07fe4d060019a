"""Runs all checks and prints what they find."""

import asyncio
from collections.abc import Sequence

from hetagent.health.check import machine, reach
from hetagent.health.check.findings import Finding, Grade, exit_status, show
from hetagent.health.check.reach import Peer
from hetagent.node import network, release
from hetagent.node.gpu.versions import versions
from hetagent.options.model import Options
from hetrdzv.auth.tls import ClientTls
from hetrdzv.client.client import Client
from hetrdzv.protocol.errors import HetError, UnknownGroup
from hetrdzv.protocol.pages import GroupReply


def run(options: Options, token: str | None, tls: ClientTls) -> int:
    """Look at this machine, the servers and the other nodes, and print a table; joins nothing.

    Returns:
        the exit status: 0 if nothing is wrong, else 1.
    """
    findings = [machine.versions(versions(), release.installed()), *machine.workers(options)]
    findings += asyncio.run(_network(options, token, tls))
    show(findings)
    return exit_status(findings)


async def _network(options: Options, token: str | None, tls: ClientTls) -> list[Finding]:
    findings = list(await asyncio.gather(*(server(url, tls) for url in options.servers)))
    interfaces = network.interfaces()
    interface: str | None = None
    try:
        address, interface = network.offered_address(options.local_addr, options.interface, options.servers)
    except network.NetworkError as error:
        findings.append(Finding("address", Grade.WRONG, str(error)))
    else:
        findings.append(machine.address(options, address, interface, interfaces))
        findings.append(machine.ports(address, options.port_range, 2 + options.snapshots.ports))
    membership, peers = await group(options, token, tls)
    return [*findings, membership, *await reach.look(peers, interfaces, interface)]


async def server(url: str, tls: ClientTls) -> Finding:
    """Whether a server answers, and which one it is."""
    what = f"server {url}"
    try:
        async with Client([url], tls=tls) as client:
            said = await client.health()
    except HetError as error:
        return Finding(what, Grade.WRONG, str(error), "is hetserver running there, and reachable from here?")
    return Finding(what, Grade.OK, f"hetserver {said.version}")


async def group(options: Options, token: str | None, tls: ClientTls) -> tuple[Finding, Sequence[Peer]]:
    """What the group says to this agent's token, and the other nodes in it."""
    what = f"group '{options.group}'"
    try:
        async with Client(options.servers, token=token, tls=tls) as client:
            reply = await client.group(options.group)
    except HetError as error:
        if error.code == UnknownGroup.code:
            return new_group(what)
        return Finding(what, Grade.WRONG, str(error)), []
    others = peers(reply, options.node_id)
    text = f"{reply.shown_state}: {reply.why}"
    advice = "" if others else "no other node is there to be reached: start another agent, then check again"
    return Finding(what, Grade.OK, text, advice), others


def new_group(what: str) -> tuple[Finding, Sequence[Peer]]:
    """What to say of a group that does not exist."""
    advice = "no other node is there to be reached: start another agent, then check again"
    return (Finding(what, Grade.OK, "does not exist yet; the first agent creates it", advice), [])


def peers(reply: GroupReply, node_id: str) -> list[Peer]:
    """The other nodes of a group that are there."""
    return [
        Peer(node.node_id, node.address, node.port)
        for node in reply.nodes
        if not node.gone and node.node_id != node_id
    ]
