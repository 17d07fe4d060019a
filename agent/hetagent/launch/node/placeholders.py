"""The placeholders in a node's command, such as `{rank_offset}`. Pure."""

import string
from collections.abc import Mapping, Sequence

from hetagent.errors import CommandError, UnevenRanksError
from hetagent.launch.base import Assignment
from hetagent.node.network import format_host_port

KNOWN: Mapping[str, str] = {
    "init_method": "where the processes meet: tcp://addr:port, or with --init-file a file:// name",
    "master_addr": "address of the round's master",
    "master_port": "port there, which the script opens",
    "world_size": "processes in all",
    "gpus": "processes of this node (its slots)",
    "rank_offset": "global rank of this node's first process",
    "node_rank": "number of this node in the round",
    "nnodes": "nodes in the round",
    "round": "number of the round",
    "restart_count": "restarts that failures have cost so far",
    "group": "id of the group",
}
"""Every placeholder and what it stands for."""

OPTIONAL = "optional"
"""What follows a name in `--option {name:optional}`, which is left out where the world size is 1."""


def find_placeholders(words: Sequence[str]) -> set[str]:
    """The placeholders that a command uses."""
    return {name for word in words for _, name, _ in _parse_word(word) if name}


def fill_placeholders(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The command with its placeholders replaced; `{{` and `}}` become single braces.

    With a world size of 1, words with `{name:optional}` are left out, each with the option before it.
    """
    filled: list[str] = []
    for word in words:
        parts = _parse_word(word)
        if values["world_size"] == "1" and any(optional for _, _, optional in parts):
            if not word.startswith("-") and filled and filled[-1].startswith("-"):
                filled.pop()
        else:
            filled.append("".join(text + (values[name] if name else "") for text, name, _ in parts))
    return filled


def get_placeholder_values(assignment: Assignment) -> dict[str, str]:
    """What the placeholders stand for in a round."""
    start = assignment.start
    address, port = start.master.address, start.master.script_port
    return {
        "init_method": f"tcp://{format_host_port(address, port)}",
        "master_addr": address,
        "master_port": str(port),
        "world_size": str(start.world_size),
        "gpus": str(start.slots),
        "rank_offset": str(start.rank_offset),
        "node_rank": str(start.group_rank),
        "nnodes": str(start.nnodes),
        "round": str(assignment.round),
        "restart_count": str(start.restart_count),
        "group": assignment.group,
    }


def require_equal_slots(names: set[str], assignment: Assignment) -> None:
    """Refuse a command that computes ranks as on nodes that are alike, in a round whose nodes are not.

    With `{node_rank}` and `{gpus}`, but without `{rank_offset}`, a script can only multiply the two: ranks would be
    taken twice or be missing, and all nodes would wait for each other.
    """
    start = assignment.start
    even = (
        start.world_size == start.nnodes * start.slots and start.rank_offset == start.group_rank * start.slots
    )
    if even or not {"node_rank", "gpus"} <= names or "rank_offset" in names:
        return
    raise UnevenRanksError(
        f"the nodes of this round have different GPU counts, but the command has {{node_rank}} and {{gpus}} without "
        f"{{rank_offset}}: {{node_rank}} * {{gpus}} is {start.group_rank * start.slots} here, and the first rank of "
        f"this node is {start.rank_offset}; {{nnodes}} * {{gpus}} is {start.nnodes * start.slots}, and the world size "
        f"is {start.world_size}. Pass {{rank_offset}} and {{world_size}} to the script instead, or start every agent "
        f"with the same --gpus"
    )


def _parse_word(word: str) -> list[tuple[str, str, bool]]:
    """The texts of a word, each with the placeholder that follows (empty: none) and whether that is optional."""
    advice = (
        f"known are {', '.join(f'{{{name}}}' for name in KNOWN)}; {{name:{OPTIONAL}}} and the option before it are "
        "left out where the world size is 1; a literal brace is written {{ or }}"
    )
    try:
        parts = list(string.Formatter().parse(word))
    except ValueError as error:
        raise CommandError(f"'{word}' in the command cannot be read ({error}): {advice}") from None
    for _, name, style, conversion in parts:
        if name is not None and (name not in KNOWN or style not in ("", OPTIONAL) or conversion):
            shown = f"{{{name}{f'!{conversion}' if conversion else ''}{f':{style}' if style else ''}}}"
            raise CommandError(f"'{word}' in the command has the unknown placeholder {shown}: {advice}")
    return [(text, name or "", style == OPTIONAL) for text, name, style, _ in parts]
