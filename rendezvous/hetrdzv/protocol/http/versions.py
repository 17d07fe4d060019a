"""API versions: which programs work together, and how each tells the other what it speaks.

Every request and reply has two headers, `Het-Api-Version` (the major version) and `Het-Api-Minor`. Programs with
different majors refuse each other. Within a major, additions only: whoever meets a newer minor ignores what it does
not know. A request with neither header is from a person (curl, a browser).

What changes which number is in docs/operations.md, Upgrades.
"""

from collections.abc import Mapping

from hetrdzv.protocol.errors import VersionMismatch

MAJOR, MINOR = 1, 0
"""What this hetrdzv speaks."""

MAJOR_HEADER, MINOR_HEADER = "Het-Api-Version", "Het-Api-Minor"

HEADERS = {MAJOR_HEADER: str(MAJOR), MINOR_HEADER: str(MINOR)}
"""Sent with every request and every reply."""


def check_request(major: str | None, minor: str | None) -> None:
    """Let a request through whose client speaks our major version, or does not say.

    Raises:
        VersionMismatch: it speaks another one, or a header is not a number.
    """
    ours = f"this server speaks API version {MAJOR}.{MINOR}"
    for header, text in ((MAJOR_HEADER, major), (MINOR_HEADER, minor)):
        if text is not None and _number(text) is None:
            raise VersionMismatch(f"header {header} is not a number; {ours}")
    if major is None or (given := _number(major)) == MAJOR:
        return
    older = "the client" if given is not None and given < MAJOR else "this server"
    raise VersionMismatch(
        f"the client speaks API version {given}, but {ours}: {older} is older, upgrade hetrdzv there"
    )


def is_newer(headers: Mapping[str, str]) -> bool:
    """Whether the sender of a request or a reply speaks a newer minor version than this program.

    Args:
        headers: case-insensitive.
    """
    return MAJOR_HEADER in headers and minor_of(headers) > MINOR


def minor_of(headers: Mapping[str, str]) -> int:
    """The minor version that the sender of a request or a reply speaks; 0 if it does not say."""
    return _number(headers.get(MINOR_HEADER, "")) or 0


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None
