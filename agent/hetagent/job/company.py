"""Whom a node will join that was given no group: two people who name none share one job."""

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

from hetagent.options.model import Options
from hetrdzv.client.client import Client
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.pages import GroupReply
from hetrdzv.protocol.texts.addresses import is_loopback
from hetrdzv.words.phrasing import names

LOOK_S = 3.0
"""How long a server may take to say who is in the group (seconds)."""

GONE = frozenset({"drained", "lost", "left"})
"""States of nodes that are not there."""


def warning(options: Options, connect: Callable[[], Client]) -> str | None:
    """What a person has to know who has named no group; None: nothing, or nobody else can reach the server.

    Args:
        connect: makes a connection to the servers.
    """
    if options.group_given or options.standalone or all(map(_is_local, options.servers)):
        return None
    return (
        f"warning: no --group, so this node joins the job '{options.group}'{asyncio.run(_company(options, connect))}, "
        f"as everybody does who names none; for a job of your own give --group NAME on each of its nodes"
    )


async def _company(options: Options, connect: Callable[[], Client]) -> str:
    """The job in words; nothing if no server says it in time, or nobody is there."""
    try:
        async with asyncio.timeout(LOOK_S), connect() as client:
            return _told(await client.group(options.group), options.node_id)
    except (HetError, TimeoutError):
        return ""


def _told(group: GroupReply, node_id: str) -> str:
    there = [node for node in group.nodes if node.state not in GONE and node.node_id != node_id]
    if not there:
        return ""
    scripts = sorted({node.script for node in there if node.script})
    runs = f": {', '.join(scripts[:3])}" if scripts else ""
    return f" of {names(node.node_id for node in there)} ({group.state}{runs})"


def _is_local(server: str) -> bool:
    return is_loopback(urlsplit(server).hostname or "")
