"""The subcommands about a group's past: its events, and every round with what its end cost."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial

import click
from rich.console import RenderableType
from rich.text import Text

from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.calls import call, complain, interruptible, look, print_json, retrying
from hetrdzv.cli.hetctl.options import GROUP, WIDE, command, shared
from hetrdzv.client import Client
from hetrdzv.protocol.errors import Problem, UnknownGroup
from hetrdzv.protocol.past import PastReply, PastRoundReply, past
from hetrdzv.protocol.phases import Phase
from hetrdzv.protocol.texts.phrasing import count, percent
from hetrdzv.protocol.texts.times import LEAST_S

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
    until that one trained (or ran, where nobody can see more). Of a round that was ended since it hung, that hang is
    NOTICED as well.
    """

    async def ask(client: Client) -> PastReply:
        return past((await client.events(group)).events, datetime.now(UTC))

    look(ask, partial(past_view, wide=wide))


def past_view(reply: PastReply, most: int | None = None, *, wide: bool = False) -> Iterator[RenderableType]:
    """The rounds of a group's past.

    Args:
        most: how many are shown, the last ones; None: all.
        wide: also how long each hung, the parts of what its end cost, and the kind of what ended it; without these the
            table fits 80 columns.
    """
    if not reply.rounds:
        yield Text("no round has formed yet")
        return
    hung = bool(reply.hung_s)
    table = tables.new_table(
        tables.word("ROUND"),
        tables.word("BEGAN"),
        *tables.numbers("WORLD", "TRAINED", *(("HUNG",) if hung and wide else ()), "DOWN"),
        *(tables.numbers("NOTICED", "STOPPED", "FORMED", "STARTED") if wide else ()),
        *((tables.word("ENDED BY"),) if wide else ()),
        tables.folded("WHY", 20),
    )
    for past_round in reply.rounds[-most:] if most is not None else reply.rounds:
        down, began = past_round.down, past_round.formed_at
        parts: list[float | None] = [None] * 4
        if down is not None:
            parts = [down.noticed_s, down.stopped_s, down.formed_s, down.started_s]
        table.add_row(
            str(past_round.number),
            "-" if began is None else tables.local(began) if wide else tables.local_briefly(began),
            str(past_round.world_size or "-"),
            _trained(past_round),
            *((tables.span(past_round.hung_s or None),) if hung and wide else ()),
            "-" if down is None else down.lasted,
            *((*map(tables.span, parts), tables.one_line(past_round.cause or "-")) if wide else ()),
            tables.one_line("; ".join(filter(None, [past_round.why, *past_round.costs]))) or "-",
        )
    yield table
    spent = sum(1 for past_round in reply.rounds if past_round.cost_restart)
    share = f", {percent(reply.share)} of the time" if reply.share is not None else ""
    if hung:
        share += f"; hung {tables.span(reply.hung_s)}"
    starting_s = sum(
        one.seconds for each in reply.rounds for one in each.phases if one.phase is Phase.STARTING
    )
    if starting_s >= LEAST_S:
        share += f"; starting up {tables.span(starting_s)}"
    if reply.unknown_s >= LEAST_S:
        share += f"; whether it trained in another {tables.span(reply.unknown_s)} is unknown"
    restarts = f", {count(spent, 'restart')} spent" if spent else ""
    yield ""
    yield Text(
        f"{count(len(reply.rounds), 'round')}{restarts}; trained {tables.span(reply.trained_s)} "
        f"of {tables.span(reply.whole_s - reply.unknown_s)}{share}"
    )


def _trained(past_round: PastRoundReply) -> str:
    return "unknown" if past_round.trained_s is None else tables.span(past_round.trained_s)
