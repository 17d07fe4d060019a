"""Node ids for several agents of one group on one host: HOST, HOST.2, HOST.3 and so on."""

import contextlib
import errno
import hashlib
import itertools
import socket
from collections.abc import Callable, Sequence

from hetagent.errors import UsageError
from hetrdzv.protocol.texts.ids import is_id


def host_name(flag: str) -> str:
    """The name of this host, which is the node id unless a flag gives another one."""
    name = socket.gethostname()
    if not is_id(name):
        raise UsageError(f"this host's name, {name!r}, cannot be a node id: give {flag}")
    return name


def claim_node_id(
    name: str, group: str, servers: Sequence[str], *, given: bool
) -> tuple[str, Callable[[], None]]:
    """The name if it was given; else the first of HOST, HOST.2, ... that no other agent on this host has in a group.

    Also returns what releases it. A socket in the kernel's abstract namespace decides, one for each name. It goes with
    the agent, however that ends. Where none can be made, it is HOST itself: a server refuses the second agent then.
    """
    with contextlib.suppress(OSError):
        for number in () if given else itertools.count(1):
            node_id = name if number == 1 else f"{name}.{number}"
            key = hashlib.sha256("\0".join([node_id, group, *sorted(set(servers))]).encode()).hexdigest()[:32]
            if (lock := _bind_socket(f"\0hetagent.{key}")) is not None:
                return node_id, lock.close
    return name, lambda: None


def _bind_socket(name: str) -> socket.socket | None:
    """A socket with this name; None: another one has it."""
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(name)
    except OSError as error:
        lock.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return lock
