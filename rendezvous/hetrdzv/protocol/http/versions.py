"""The version of the API, which requests and replies carry as `Het-Api-Version`.

Programs with different versions refuse each other. Within a version there are additions only, so agents' requests and
all replies may have fields that the other side does not know: it ignores them. A request without the header is from a
person (curl, a browser). What changes the number is in docs/operations.md, Upgrades.
"""

from hetrdzv.protocol.errors import VersionMismatch

MAJOR = 1
"""What this hetrdzv speaks."""

HEADER = "Het-Api-Version"

HEADERS = {HEADER: str(MAJOR)}
"""Sent with every request and every reply."""


def check_request(given: str | None) -> None:
    """Let a request through whose client speaks our version, or does not say.

    Raises:
        VersionMismatch: it speaks another one, or the header is not a number.
    """
    if given is None:
        return
    ours = f"this server speaks API version {MAJOR}"
    if not (given.isascii() and given.isdecimal() and len(given) <= 18):
        raise VersionMismatch(f"header {HEADER} is not a number; {ours}")
    if (number := int(given)) != MAJOR:
        older = "the client" if number < MAJOR else "this server"
        raise VersionMismatch(
            f"the client speaks API version {number}, but {ours}: {older} is older, upgrade hetrdzv there"
        )
