"""The subcommand `stacks`: where in the code every worker is, equal stacks shown once."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.calls import call, print_json
from hetrdzv.cli.hetctl.options import GROUP, RANKS, command, shared
from hetrdzv.protocol.pages import StacksReply
from hetrdzv.protocol.rooms.stacks import Stack
from hetrdzv.words.phrasing import count, names, ranked

_ADDRESSES = re.compile(r"0x[0-9a-f]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Alike:
    """Workers whose stacks are equal, but for addresses.

    Attributes:
        text, why: as in `StackReply`, of the first of them.
        ranks, nodes: of all of them, in order.
    """

    text: str
    why: str
    ranks: Sequence[int]
    nodes: Sequence[str]


def collapsed(stacks: Sequence[Stack]) -> list[Alike]:
    """Stacks with equal ones put together, the rarest first: people look for the worker that is elsewhere."""
    by_text: dict[tuple[str, str], list[Stack]] = {}
    for stack in stacks:
        by_text.setdefault((_ADDRESSES.sub("0x", stack.text), stack.why), []).append(stack)
    groups = sorted(by_text.values(), key=lambda alike: (not alike[0].text, len(alike), alike[0].rank))
    return [
        Alike(
            alike[0].text,
            alike[0].why,
            [stack.rank for stack in alike],
            list(dict.fromkeys(stack.node_id for stack in alike)),
        )
        for alike in groups
    ]


def view(reply: StacksReply) -> Iterator[RenderableType]:
    """Stacks as a terminal shows them."""
    alike = collapsed(reply.stacks)
    different = count(sum(1 for shown in alike if shown.text), "different stack")
    yield Text.assemble(
        (f"round {reply.round}", "bold"), f": {count(len(reply.stacks), 'rank')}, {different}"
    )
    for shown in alike:
        ranks = ranked(shown.ranks)
        who = f" ({names(shown.nodes)})"
        yield ""
        if shown.text:
            yield Text.assemble((ranks, "bold"), who)
            yield Padding(
                Text(tables.plain(shown.text).rstrip(), overflow="fold"), (0, 0, 0, 2), expand=False
            )
        else:
            yield Text.assemble((ranks, "bold"), f"{who}: no stack: {tables.one_line(shown.why)}")


@command("Show where in the code the workers are.")
@GROUP
@RANKS
def stacks(group: str, rank: tuple[int, ...]) -> None:
    """Show the Python stacks of the workers of GROUP, now; equal ones once, the rarest first. Needs an admin token."""
    reply = call(lambda client: client.stacks_of(group, rank=rank))
    if shared().as_json:
        print_json(reply)
    else:
        tables.show(*view(reply))
