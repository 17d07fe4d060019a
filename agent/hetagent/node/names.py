"""Node ids for several agents of one group on one host: HOST, HOST.2, HOST.3 and so on.

A socket in the kernel's abstract namespace decides, one for each name. It goes with the agent, however that ends, so an
agent that is started again gets its name back. Containers with networks of their own are different hosts, between which
only the server can tell.
"""

import errno
import hashlib
import itertools
import os
import socket
import weakref
from collections.abc import Sequence

from hetagent.errors import UsageError
from hetrdzv.protocol.texts.ids import is_id

_locks: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""Closed in a fork, which would hold the names of its parent."""


def _close_locks() -> None:
    for lock in _locks:
        lock.close()


os.register_at_fork(after_in_child=_close_locks)


def host_name(flag: str) -> str:
    """The name of this host, which is the node id unless a flag gives another one."""
    name = socket.gethostname()
    if not is_id(name):
        raise UsageError(f"this host's name, {name!r}, cannot be a node id: give {flag}")
    return name


class NodeIdClaim:
    """A node id that no other agent on this host has in the same group, until it is released or nobody has this object.

    Attributes:
        notes: what a person should know of it.
    """

    def __init__(self, node_id: str, notes: Sequence[str] = (), lock: socket.socket | None = None) -> None:
        self.node_id = node_id
        self.notes = notes
        self._close = weakref.finalize(self, lock.close) if lock is not None else lambda: None

    def release(self) -> None:
        """Let another agent have the name; harmless if called again."""
        self._close()


def claim_node_id(name: str, group: str, servers: Sequence[str], *, given: bool) -> NodeIdClaim:
    """The name if it was given; else the first of HOST, HOST.2, ... that no other agent on this host has in a group.

    Where no such socket can be made, HOST itself: a server refuses the second agent then.
    """
    if given:
        return NodeIdClaim(name)
    lock = None
    for number in itertools.count(1):
        node_id = name if number == 1 else f"{name}.{number}"
        key = hashlib.sha256("\0".join([node_id, group, *sorted(set(servers))]).encode()).hexdigest()[:32]
        try:
            lock = lock or socket.socket(socket.AF_UNIX)
            lock.bind(f"\0hetagent.{key}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                break
            continue
        _locks.add(lock)
        note = f"this host already has an agent of group '{group}', so this one is node '{node_id}'"
        return NodeIdClaim(node_id, [note] if number > 1 else [], lock)
    if lock is not None:
        lock.close()
    return NodeIdClaim(name)
