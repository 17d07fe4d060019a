"""`hetagent --check`: whether this machine is fit to join, without joining: a table with advice."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import urlsplit

from rich.text import Text

from hetagent.errors import UsageError
from hetagent.launch.slots import choose_worker_devices, hide_other_devices
from hetagent.node import network
from hetagent.node.gpu import devices
from hetagent.node.gpu.driver import GpuLostError, find_versions, raise_if_lost
from hetagent.node.network import format_host_port
from hetagent.node.processes.identity import ServerAccess
from hetagent.options.model import Options
from hetagent.session.preflight import find_connect_error
from hetrdzv import __version__
from hetrdzv.cli.hetctl.printing import make_table, print_to_stdout, unwrapped_column, wrapped_column
from hetrdzv.protocol.errors import HetError, UnknownGroup
from hetrdzv.protocol.replies import NodeReply
from hetrdzv.protocol.texts.ids import is_loopback

MOST_NODES = 64
"""So many other nodes are tried at most."""


Grade = Literal["ok", "warning", "wrong"]
"""What a finding means for a job; shown as a word, and in colour on a terminal."""

_STYLES: Mapping[Grade, str] = {"ok": "green", "warning": "yellow", "wrong": "bold red"}


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A row: what was looked at, what is there, what to do about it."""

    what: str
    grade: Grade
    found: str
    advice: str = ""


def run_check(options: Options, access: ServerAccess) -> int:
    """Look at this machine, the servers and the other nodes, and print a table; joins nothing.

    Returns:
        the exit status: 0 if nothing is wrong, else 1; warnings do not count.
    """
    findings = [check_versions(find_versions()), *check_devices(options)]
    findings += asyncio.run(_check_network(options, access))
    columns = [
        unwrapped_column("CHECK"),
        unwrapped_column("IS"),
        wrapped_column("FOUND", 20),
        wrapped_column("ADVICE", 20),
    ]
    rows = [(row.what, Text(row.grade, style=_STYLES[row.grade]), row.found, row.advice) for row in findings]
    print_to_stdout(make_table(columns, rows))
    return int(any(finding.grade == "wrong" for finding in findings))


# -- this machine --------------------------------------------------------------------------------------------


def check_versions(there: Mapping[str, str]) -> CheckRow:
    """What has to fit together on all nodes."""
    text = ", ".join(f"{name} {version}" for name, version in {"hetrdzv": __version__, **there}.items())
    return CheckRow("versions", "ok", text)


def check_devices(options: Options) -> list[CheckRow]:
    """What the workers would run on. Leaves only the chosen devices visible to this process."""
    try:
        chosen = choose_worker_devices(options)
    except UsageError as error:
        return [CheckRow("devices", "wrong", error.finding, error.advice)]
    if chosen.kind != "cuda":
        unchecked = "" if chosen.kind else "; the GPUs are not checked"
        return [CheckRow("devices", "ok", f"{chosen.description}{unchecked}")]
    hide_other_devices(chosen)
    found = CheckRow("devices", "ok", chosen.facts.get("name") or chosen.description)
    try:
        raise_if_lost([gpu.uuid for gpu in devices.visible_gpus(os.environ)])
    except GpuLostError as error:
        return [found, CheckRow("GPUs", "wrong", str(error), "reset the GPU, or leave it out: --gpus")]
    return [found]


def check_address(options: Options, offered: str, interface: str | None) -> CheckRow:
    """The address that this node would offer, and why this one; `interface`: the one that has it."""
    why = "--local-addr" if options.local_addr is not None else "towards the server"
    why = "--interface" if options.interface is not None else why
    text = f"{offered} ({interface or 'no interface here has it'}; {why})"
    if not is_loopback(offered):
        return CheckRow("address", "ok", text)
    if all(is_loopback(urlsplit(url).hostname or "") for url in options.servers):
        return CheckRow("address", "warning", text, "for a job on this host only")
    return CheckRow("address", "wrong", text, "other hosts cannot reach it: --local-addr or --interface")


def check_ports(offered: str, port_range: tuple[int, int] | None, count: int) -> CheckRow:
    """Whether the ports that a node needs are free."""
    try:
        with ExitStack() as held:
            for _ in range(count):
                held.enter_context(network.hold_port(offered, port_range))
    except network.NetworkError as error:
        return CheckRow("ports", "wrong", str(error))
    span = "any" if port_range is None else f"{port_range[0]}-{port_range[1]}"
    return CheckRow("ports", "ok", f"{count} are free ({span})")


# -- servers and other nodes ---------------------------------------------------------------------------------


async def _check_network(options: Options, access: ServerAccess) -> list[CheckRow]:
    findings = list(
        await asyncio.gather(*(_check_server(replace(access, servers=(url,))) for url in access.servers))
    )
    try:
        place = network.find_address(options.local_addr, options.interface, access.servers)
    except network.NetworkError as error:
        findings.append(CheckRow("address", "wrong", str(error)))
    else:
        findings.append(check_address(options, place.address, place.interface))
        findings.append(check_ports(place.address, options.port_range, 2 + (options.snapshots.memory != 0)))
    return findings + await _check_group(options, access)


async def _check_server(access: ServerAccess) -> CheckRow:
    """Whether a server answers, and which one it is."""
    what = f"server {access.servers[0]}"
    try:
        async with access.client() as client:
            health = await client.health()
    except HetError as error:
        return CheckRow(what, "wrong", str(error), "is hetserver running there, and reachable from here?")
    return CheckRow(what, "ok", f"hetserver {health.version}")


async def _check_group(options: Options, access: ServerAccess) -> list[CheckRow]:
    """What the group says to this agent's token, and whether its other nodes can be reached."""
    what, nodes = f"group '{options.group}'", []
    try:
        async with access.client() as client:
            reply = await client.group(options.group)
        text = f"{reply.display_state}: {reply.why}"
        nodes = [node for node in reply.nodes if not node.is_gone and node.node_id != options.node_id]
    except HetError as error:
        if error.code != UnknownGroup.code:
            return [CheckRow(what, "wrong", str(error))]
        text = "does not exist yet; the first agent creates it"
    advice = "" if nodes else "no other node is there to be reached: start another agent, then check again"
    findings = [CheckRow(what, "ok", text, advice)]
    findings += await asyncio.gather(*map(_check_node, nodes[:MOST_NODES]))
    if len(nodes) > MOST_NODES:
        text = f"{len(nodes) - MOST_NODES} more nodes were not tried"
        findings.append(CheckRow("other nodes", "warning", text))
    return findings


async def _check_node(node: NodeReply) -> CheckRow:
    what, place = f"node {node.node_id}", format_host_port(node.address, node.port)
    reason = await find_connect_error(node.address, node.port)
    if reason is None:
        return CheckRow(what, "ok", place)
    advice = "a firewall or another network: open a range and give it as --port-range, or choose --interface"
    if reason == "connection refused":
        advice = "its host answers, but not on this port: is its agent still there?"
    return CheckRow(what, "wrong", f"{place}: {reason}", advice)
