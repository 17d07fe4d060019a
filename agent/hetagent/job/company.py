"""Whom a node will join that was given no group: two people who name none share one job."""

import asyncio
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from hetagent.launch.command import checksum
from hetagent.options.model import Options, UsageError
from hetrdzv.client.client import Client
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.pages import GroupReply, NodeReply
from hetrdzv.protocol.texts.addresses import is_loopback
from hetrdzv.words.phrasing import names

LOOK_S = 3.0
"""How long a server may take to say who is in the group (seconds)."""


def warning(options: Options, connect: Callable[[], Client]) -> str | None:
    """What a person has to know who has named no group; None: nothing, or nobody else can reach the server.

    Args:
        connect: makes a connection to the servers.

    Raises:
        UsageError: a node that was never in this job would join it with another script of the same name.
    """
    if options.group_given or options.standalone:
        return None
    group = asyncio.run(_group(options, connect))
    there = _there(group, options.node_id) if group is not None else []
    if group is not None:
        _require_same_script(options, group, there)
    if all(map(_is_local, options.servers)):
        return None
    company = _told(group, there) if group is not None and there else ""
    return (
        f"warning: no --group, so this node joins the job '{options.group}'{company}, as everybody does who names "
        f"none; for a job of your own give --group NAME on each of its nodes"
    )


async def _group(options: Options, connect: Callable[[], Client]) -> GroupReply | None:
    """The job; None: no server says it in time, or there is none."""
    try:
        async with asyncio.timeout(LOOK_S), connect() as client:
            return await client.group(options.group)
    except (HetError, TimeoutError):
        return None


def _there(group: GroupReply, node_id: str) -> list[NodeReply]:
    return [node for node in group.nodes if not node.gone and node.node_id != node_id]


def _require_same_script(options: Options, group: GroupReply, there: Sequence[NodeReply]) -> None:
    runs = options.torchrun
    own = checksum(options.script, module=runs.module, no_python=runs.no_python)
    others = [node for node in there if node.role == runs.role and node.device.get("script", own) != own]
    if not own or not others or any(node.node_id == options.node_id for node in group.nodes):
        return
    raise UsageError(
        f"no --group, and the job '{group.group_id}' of {names(node.node_id for node in others)} runs another "
        f"{others[0].script or 'script'} than this one: give --group NAME for a job of your own, or --group "
        f"{group.group_id} to join that one"
    )


def _told(group: GroupReply, there: Sequence[NodeReply]) -> str:
    scripts = sorted({node.script for node in there if node.script})
    runs = f": {', '.join(scripts[:3])}" if scripts else ""
    return f" of {names(node.node_id for node in there)} ({group.state}{runs})"


def _is_local(server: str) -> bool:
    return is_loopback(urlsplit(server).hostname or "")
