"""What a server's error means for a node: whether to retry, and what came with it."""

from typing import TypeVar

from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import SCRIPT_DIFFERENCE, HetError, Problem, SettingsConflict

_R = TypeVar("_R")

STRANGERS = frozenset(
    {"not_hetserver", "not_trusted", "version_mismatch", "unauthorized", "forbidden", "foreign_host"}
)
"""Before the first join: --server, --ca-cert or the token is wrong. Later: a proxy has a hiccup."""

MISSING = frozenset({"unknown_group", "not_found"})
"""Errors of a server that may have lost its state, or never had it."""

CREDENTIALS = frozenset({"unauthorized", "forbidden"})
"""Errors of a server that does not accept this agent's token or certificate."""


def is_final(error: HetError) -> bool:
    """Whether a server refused, and would refuse again."""
    return isinstance(error, Problem) and 400 <= error.status < 500 and error.status not in (408, 429)


def read_error_field(error: HetError, name: str, kind: type[_R]) -> _R | None:
    """What came with a refusal, such as `directive`, if it can be read."""
    if not isinstance(error, Problem) or name not in error.body:
        return None
    try:
        return codec.validate_value(kind, error.body[name], unknown="ignore")
    except codec.MalformedJson:
        return None


def describe_conflict(group: str, conflict: SettingsConflict) -> str:
    """Why a join with other settings was refused, and what to do about it."""
    end = "wait until its job is over" if conflict.nodes else f"remove that one (hetctl delete {group})"
    if (
        script := next((row for row in conflict.differences if row.name == SCRIPT_DIFFERENCE), None)
    ) is not None:
        return (
            f"group '{group}' runs {script.group}{_list_holders(conflict)}, and this agent was given {script.given}: "
            f"use another --group, or {end}; if both belong to one job, give this one a --role of its own"
        )
    there = ", ".join(f"{row.name} {row.given} here, {row.group} there" for row in conflict.differences)
    return (
        f"group '{group}' has other settings ({there}){_list_holders(conflict)}: "
        f"leave these flags out, use another --group, or {end}"
    )


def _list_holders(conflict: SettingsConflict) -> str:
    """Who holds a group to its settings."""
    if conflict.by_put:
        return ", which it was created with (hetctl create)"
    more = ", ..." if len(conflict.nodes) > 5 else ""
    return f", which {', '.join(conflict.nodes[:5])}{more} joined"
