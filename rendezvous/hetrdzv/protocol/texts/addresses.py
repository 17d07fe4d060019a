"""The default port, and which addresses are loopback."""

import ipaddress
from functools import lru_cache

DEFAULT_PORT = 29400
"""Where hetserver listens by default, and the port of a server URL that names none."""


@lru_cache(maxsize=1 << 16)
def is_loopback(address: str) -> bool:
    """Whether an address, or a host name (RFC 6761), always means this machine itself."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost" or address.endswith(".localhost")
