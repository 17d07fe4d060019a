"""The default port, and which addresses are loopback."""

import ipaddress
import re
from functools import lru_cache

DEFAULT_PORT = 29400
"""Where hetserver listens by default, and the port of a server URL that names none."""


_MAYBE_LOOPBACK = re.compile(r"127\.|[0:]*1?(%|$)|[0:]*:ffff:|localhost$|.*\.localhost$", re.IGNORECASE)
"""How loopback addresses and names begin or end; whatever does not match is none, and costs no parsing."""


@lru_cache(maxsize=1 << 16)
def is_loopback(address: str) -> bool:
    """Whether an address, or a host name (RFC 6761), always means this machine itself."""
    if _MAYBE_LOOPBACK.match(address) is None:
        return False
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost" or address.endswith(".localhost")
