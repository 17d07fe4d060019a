"""The subcommand `stacks`: where in the code every worker is, equal stacks shown once."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.calls import call, complain, print_json
from hetrdzv.cli.hetctl.options import GROUP, RANKS, command, of_round, shared
from hetrdzv.protocol.pages import StacksReply
from hetrdzv.protocol.rooms.stacks import collapsed
from hetrdzv.words.phrasing import count, names, ranked


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
@of_round(
    "Those that were taken when round N hung, of the last three that did (default: now, if a round runs)."
)
def stacks(group: str, rank: tuple[int, ...], number: int | None) -> None:
    """Show the Python stacks of the workers of GROUP; equal ones once, the rarest first.

    While no round runs, those that were taken when the last one hung. Needs an admin token.
    """
    reply = call(lambda client: client.stacks_of(group, rank=rank, round=number))
    if shared().as_json:
        print_json(reply)
    else:
        if reply.over and number is None:
            complain(f"no round runs now; these were taken when round {reply.round} hung")
        tables.show(*view(reply))
