"""Flags of hetagent that were typed after the script, which did not know them, as what it wrote shows."""

import re

from hetrdzv.protocol.differences import RANGES
from hetrdzv.protocol.settings import SETTINGS

HETAGENTS = frozenset(
    {
        *(f"--{name.replace('_', '-')}" for name, setting in SETTINGS.items() if setting.has_flag),
        *RANGES,
        *("--group", "--server", "--standalone", "--node-id", "--token-file", "--launch", "--preload"),
        *("--nproc-per-node", "--gpus", "--device", "--weight", "--label", "--local-addr", "--interface"),
        *("--log-dir", "--redirects", "--tee", "--rdzv-id"),
    }
)
"""Those that people type, in their long spelling with dashes."""

MOST = 4
"""How many of them are named."""

_UNKNOWN = re.compile(r"^\S+: error: unrecognized arguments: (?P<words>.+)$")
"""The last line of a program that argparse ends."""


def misplaced(line: str) -> tuple[str, ...]:
    """The flags, as they were typed, that a script's last line says it does not know, and hetagent does."""
    found = _UNKNOWN.match(line)
    flags = [word.partition("=")[0] for word in found["words"].split()] if found is not None else []
    return tuple(dict.fromkeys(flag for flag in flags if flag.replace("_", "-") in HETAGENTS))[:MOST]
