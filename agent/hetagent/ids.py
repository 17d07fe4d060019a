"""Ids of groups and nodes, as people give them: changes when the server takes others."""

import re
import socket


def checked(value: str) -> str:
    """An id.

    Raises:
        ValueError: no server would take it; says what one is made of.
    """
    if not _is_id(value):
        raise ValueError(f"{value!r} must be 1 to 128 letters, digits, '.', '_' or '-' (not only dots)")
    return value


def host_name() -> str:
    """The name of this host, which is its node's id unless another one is given.

    Raises:
        ValueError: it cannot be one.
    """
    name = socket.gethostname()
    if not _is_id(name):
        raise ValueError(f"the name of this host, {name!r}, cannot be a node id")
    return name


def _is_id(value: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9._-]{1,128}", value) is not None and value.strip(".") != ""
