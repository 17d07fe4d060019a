"""When this node's slots are measured.

It takes a few seconds the first time, which only a job that shares its work by speed gets back. So by default they are
measured where the script says that it does, by its imports: nobody else waits. What is kept from an earlier job is not
used unasked either, or the shares of a job would depend on what somebody else has run here before.
"""

import ast
from pathlib import Path

from hetagent.launch.command import WorkerCommand

USERS = ("hetagent.shares", "hetagent.uneven")
"""The modules by which a script shares its work."""

MOST_BYTES = 1 << 20
"""A longer script is not looked at."""


def is_wanted(mode: str, script: Path | None, *, weighed: bool) -> bool:
    """Whether the slots are to be measured.

    Args:
        mode: `auto`, `on`, `off` or `again`.
        script: what the workers run, if that is Python; None: something else, or nobody knows yet.
        weighed: whether this node was given a weight, by which all shares go then.
    """
    if mode != "auto":
        return mode != "off"
    return not weighed and script is not None and uses_shares(script)


def uses_shares(script: Path) -> bool:
    """Whether a script imports one of `USERS` itself; those that it imports are not looked at."""
    try:
        if script.stat().st_size > MOST_BYTES:
            return False
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(
        (isinstance(node, ast.Import) and any(alias.name in USERS for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.level == 0 and _from(node))
        for node in ast.walk(tree)
    )


def _from(node: ast.ImportFrom) -> bool:
    return node.module in USERS or any(f"{node.module}.{alias.name}" in USERS for alias in node.names)


def script_of(command: WorkerCommand | None, script: str | None, *, module: bool) -> Path | None:
    """The file that Python runs; None: it is another program, or the group's command.

    Args:
        script: as it was given; with `module`, the name of a module, which is looked for in this folder only.
    """
    if command is None or not command.is_python or script is None:
        return None
    if not module:
        return Path(script)
    return Path(*script.split(".")).with_suffix(".py")
