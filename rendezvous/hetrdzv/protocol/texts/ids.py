"""The rule for ids of groups, nodes and agents, and their natural order; addresses."""

import ipaddress
import re
from functools import lru_cache

ID_PATTERN = r"^\.*[A-Za-z0-9_-][A-Za-z0-9._-]*$"
"""Not only dots, since `.` and `..` have a meaning in URLs."""

MAX_ID_LENGTH = 128

ID_RULE = f"1 to {MAX_ID_LENGTH} letters, digits, '.', '_' or '-' (not only dots)"
"""The rule in words, for error messages."""


def is_id(value: str) -> bool:
    """Whether a value is a valid id."""
    return len(value) <= MAX_ID_LENGTH and re.fullmatch(ID_PATTERN, value) is not None


def check_id(value: str) -> str:
    """The value, if it is a valid id; else a ValueError, which states the rule."""
    if not is_id(value):
        raise ValueError(f"{value!r} must be {ID_RULE}")
    return value


@lru_cache(maxsize=1 << 15)
def natural_key(name: str) -> tuple[str, str]:
    """Sort key that puts `gpu2` before `gpu10` (numbers of up to 20 digits); no two names have the same."""
    return re.sub(r"\d+", lambda number: number[0].lstrip("0").rjust(20, "\0"), name), name


DEFAULT_PORT = 29400
"""Where hetserver listens by default, and the port of a server URL that names none."""


@lru_cache(maxsize=1 << 16)
def is_loopback(address: str) -> bool:
    """Whether an address, or a host name (RFC 6761), always means this machine itself."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost" or address.endswith(".localhost")
