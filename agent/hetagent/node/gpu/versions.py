"""Versions of what has to fit together on all nodes of a job, as this process has it."""

import platform

from hetagent.node.gpu import discovery

MOST_CHARACTERS = 64
"""The longest version that is sent."""


def versions() -> dict[str, str]:
    """Python, torch, and what GPUs need (`discovery.versions`), by name; what is not here or not known is left out.

    torch has to be imported already, or this takes as long as that.
    """
    import torch

    known: dict[str, object] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        **discovery.versions(torch),
    }
    return {name: str(version)[:MOST_CHARACTERS] for name, version in known.items() if version}
