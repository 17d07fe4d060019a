"""The subcommands about a group's past: its events, and every round with what its end cost."""

import asyncio
from collections.abc import Iterator
from functools import partial

import click
from rich.console import RenderableType
from rich.text import Text

from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.calls import call, complain, interruptible, look, print_json, retrying
from hetrdzv.cli.hetctl.options import GROUP, WIDE, command, shared
from hetrdzv.client import Client
from hetrdzv.protocol.errors import Problem, UnknownGroup
from hetrdzv.protocol.rounds import Phase, RoundsReply, time_text, total_time, with_downs
from hetrdzv.protocol.texts.phrasing import count

PAUSE_S = 1.0
"""How long to pause before asking whether there are new events (seconds)."""


@command("Show a group's history, or follow it.")
@GROUP
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C, or until the group is deleted.")
@click.option(
    "--after", type=click.IntRange(min=0), default=0, metavar="N", help="Only events after number N."
)
def events(group: str, follow: bool, after: int) -> None:
    """Show the history of GROUP: number, local time, what happened."""
    if follow:
        interruptible(lambda client: _follow(client, group, after))
        return
    reply = call(lambda client: client.events(group, after=after))
    if shared().as_json:
        print_json(reply)
    else:
        for event in reply.events:
            tables.write(tables.event_line(event))


async def _follow(client: Client, group: str, last: int) -> None:
    """Print the history as it grows; returns when the group is deleted."""
    reply = await client.events(group, after=last)
    while True:
        for event in reply.events:
            print_json(event, indent=None) if shared().as_json else tables.write(tables.event_line(event))
        last = reply.last if reply.last >= last else 0  # the group was deleted and created again
        await asyncio.sleep(PAUSE_S)
        try:
            reply = await retrying(partial(client.events, group, after=last))
        except Problem as problem:
            if problem.code != UnknownGroup.code:
                raise
            complain(f"group '{group}' was deleted: its history ends here")
            return


# -- rounds ------------------------------------------------------------------------------------------------


@command("Show every round of a group and what its end cost.")
@GROUP
@WIDE
def history(group: str, wide: bool) -> None:
    """Show the rounds of GROUP: how long each trained, what ended it, and for how long nobody trained after that.

    TRAINED is from a round's first collective or step to its last, without the time in which it hung; unknown where
    nobody can see these. With --wide that is shown as HUNG, and DOWN also as the sum of four: NOTICED, from the fault
    until the round ended; STOPPED, until its last workers were gone; FORMED, until the next round formed; STARTED,
    until that one trained (or ran, where nobody can see more).
    """
    look(lambda client: client.rounds(group), partial(rounds_view, wide=wide))


def rounds_view(reply: RoundsReply, most: int = 0, *, wide: bool = False) -> Iterator[RenderableType]:
    """The rounds of a group.

    Args:
        most: how many are shown, the last ones; 0: all.
        wide: also how long each hung, the parts of what its end cost, and the kind of what ended it; without these the
            table fits 80 columns.
    """
    if not reply.rounds:
        yield Text("no round has formed yet")
        return
    table = tables.new_table(
        tables.word("ROUND"),
        tables.word("BEGAN"),
        *tables.numbers("WORLD", "TRAINED", *(("HUNG",) if wide else ()), "DOWN"),
        *(tables.numbers("NOTICED", "STOPPED", "FORMED", "STARTED") if wide else ()),
        *((tables.word("ENDED BY"),) if wide else ()),
        tables.folded("WHY", 20),
    )
    for record, down in with_downs(reply.rounds)[-most:]:
        began, why = record.formed_at, str(record.reason or "")
        table.add_row(
            str(record.number),
            "-" if began is None else tables.local(began) if wide else tables.local_briefly(began),
            str(record.world_size),
            "unknown" if record.trained_s is None else tables.span(record.trained_s),
            *((tables.span(record.time.get(Phase.HANGING)),) if wide else ()),
            str(down or "-"),
            *(map(tables.span, down.parts if down is not None else [None] * 4) if wide else ()),
            *((tables.one_line(record.ended_by or "-"),) if wide else ()),
            tables.one_line("; ".join(filter(None, [why, record.cost]))) or "-",
        )
    yield table
    yield ""
    spent = sum(record.cost_restart for record in reply.rounds)
    restarts = f", {count(spent, 'restart')} spent" if spent else ""
    yield Text(f"{count(len(reply.rounds), 'round')}{restarts}; {time_text(total_time(reply.rounds))}")
