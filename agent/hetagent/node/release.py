"""Which releases of torch this hetagent works with. Looks at what is installed without importing it."""

import re
from importlib.metadata import PackageNotFoundError, version

from hetagent.errors import UsageError

OLDEST = (2, 6)
"""The first release of torch that works."""

TESTED = (2, 15)
"""The newest one with which everything was tested (`make test-torch`)."""


def find_torch_release() -> str | None:
    """The version of the torch that is installed; None if it was installed by other means than as a package."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def check_torch_release(release: str | None) -> str | None:
    """A warning about a torch that is newer than what was tested; None where there is nothing to say."""
    number = _number(release)
    if number is not None and number < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UsageError(
            f"torch {release} is too old: hetagent needs torch {oldest} or newer; "
            f"upgrade it with pip install 'torch>={oldest}'"
        )
    if number is not None and number > TESTED:
        tested = ".".join(map(str, TESTED))
        return f"torch {release} is newer than what this hetagent was tested with ({tested})"
    return None


def _number(release: str | None) -> tuple[int, int] | None:
    parts = re.match(r"(\d+)\.(\d+)", release or "")
    return (int(parts[1]), int(parts[2])) if parts is not None else None
