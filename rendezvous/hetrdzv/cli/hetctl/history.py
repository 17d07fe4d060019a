"""The subcommands about a group's past: its events, and every round with what its end cost."""

import asyncio
from collections.abc import Iterator
from functools import partial

import click
from rich.console import RenderableType

from hetrdzv.cli.hetctl import printing
from hetrdzv.cli.hetctl.options import GROUP_ARGUMENT, WIDE_OPTION, get_shared_options, subcommand
from hetrdzv.cli.hetctl.server_calls import (
    call_server,
    none_on_error,
    print_json,
    print_warning,
    retry_until_answered,
    show_reply,
)
from hetrdzv.client import Client
from hetrdzv.protocol.errors import UnknownGroup
from hetrdzv.protocol.replies import EventsReply
from hetrdzv.protocol.rounds import (
    Downtime,
    RoundPhase,
    RoundRecord,
    RoundsReply,
    time_spent_text,
    total_time,
    with_downtimes,
)
from hetrdzv.protocol.texts.phrasing import count_text, duration_text

EVENT_POLL_INTERVAL_S = 1.0
"""How long to pause before asking whether there are new events (seconds)."""


@subcommand("Show a group's history, or follow it.")
@GROUP_ARGUMENT
@click.option("--follow", "-f", is_flag=True, help="Follow until Ctrl-C, or until the group is deleted.")
@click.option(
    "--after", type=click.IntRange(min=0), default=0, metavar="N", help="Only events after number N."
)
def events(group: str, follow: bool, after: int) -> None:
    """Show the history of GROUP: number, local time, what happened."""
    if follow:
        call_server(lambda client: _follow_events(client, group, after), interrupted=0)
    else:
        show_reply(
            lambda client: client.events(group, after=after),
            lambda reply: map(printing.event_line, reply.events),
        )


async def _follow_events(client: Client, group: str, last: int) -> None:
    """Print the history as it grows; returns when the group is deleted."""
    reply: EventsReply | None = await client.events(group, after=last)
    while reply is not None:
        for event in reply.events:
            if get_shared_options().as_json:
                print_json(event, indent=None)
            else:
                printing.print_line(printing.event_line(event))
        last = reply.last if reply.last >= last else 0  # the group was deleted and created again
        await asyncio.sleep(EVENT_POLL_INTERVAL_S)
        reply = await none_on_error(
            UnknownGroup.code, retry_until_answered(partial(client.events, group, after=last))
        )
    print_warning(f"group '{group}' was deleted: its history ends here")


# -- rounds ------------------------------------------------------------------------------------------------


@subcommand("Show every round of a group and what its end cost.")
@GROUP_ARGUMENT
@WIDE_OPTION
def history(group: str, wide: bool) -> None:
    """Show the rounds of GROUP: how long each trained, what ended it, and for how long nobody trained after that.

    TRAINED is from a round's first collective or step to its last, without the time in which it hung; unknown where
    nobody can see these. With --wide that is shown as HUNG, and DOWN also as the sum of four: NOTICED, from the fault
    until the round ended; STOPPED, until its last workers were gone; FORMED, until the next round formed; STARTED,
    until that one trained (or ran, where nobody can see more).
    """
    show_reply(lambda client: client.rounds(group), partial(rounds_view, wide=wide))


def rounds_view(reply: RoundsReply, most: int = 0, *, wide: bool = False) -> Iterator[RenderableType]:
    """The last `most` rounds of a group (0: all); if not `wide`, in 80 columns."""
    if not reply.rounds:
        yield "no round has formed yet"
        return
    columns = [
        printing.unwrapped_column("ROUND"),
        printing.unwrapped_column("BEGAN"),
        *printing.number_columns("WORLD", "TRAINED", "DOWN"),
    ]
    if wide:
        columns += printing.number_columns("HUNG", "NOTICED", "STOPPED", "FORMED", "STARTED")
        columns.append(printing.unwrapped_column("ENDED BY"))
    columns.append(printing.wrapped_column("WHY", 20))
    yield printing.make_table(
        columns, (_round_row(*each, wide) for each in with_downtimes(reply.rounds)[-most:])
    )
    yield ""
    spent = sum(record.cost_restart for record in reply.rounds)
    restarts = f", {count_text(spent, 'restart')} spent" if spent else ""
    yield f"{count_text(len(reply.rounds), 'round')}{restarts}; {time_spent_text(total_time(reply.rounds))}"


def _round_row(record: RoundRecord, down: Downtime | None, wide: bool) -> list[str]:
    began = "" if record.formed_at is None else printing.local_time(record.formed_at)
    parts = [record.time.get(RoundPhase.HANGING), *(down or [None] * 4)]
    more = ["" if seconds is None else duration_text(seconds) for seconds in parts]
    return [
        str(record.number),
        began if wide else began[5:-3],  # to the minute, without the year
        str(record.world_size),
        "unknown" if record.trained_s is None else duration_text(record.trained_s),
        duration_text(sum(down)) if down is not None else "",
        *([*more, record.ended_by] if wide else ()),
        "; ".join(filter(None, [str(record.reason or ""), record.cost])),
    ]
