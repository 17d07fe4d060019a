"""The subcommand about a group's history: events."""

import asyncio

import click

from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.calls import call, complain, print_json
from hetrdzv.cli.hetctl.options import GROUP, command, shared
from hetrdzv.client import Client
from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import Problem, UnknownGroup, Unreachable
from hetrdzv.protocol.pages import EventReply

RETRY_S = 1.0
"""Pause before a server that went away is tried again (seconds)."""


@command("Show a group's history, or follow it.")
@GROUP
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C, or until the group is deleted.")
@click.option(
    "--after", type=click.IntRange(min=0), default=0, metavar="N", help="Only events after number N."
)
def events(group: str, follow: bool, after: int) -> None:
    """Show the history of GROUP: number, local time, what happened."""
    as_json = shared().as_json
    if follow:
        try:
            call(lambda client: _follow(client, group, after, as_json))
        except KeyboardInterrupt:
            return
        complain(f"group '{group}' was deleted: its history ends here")
        return
    reply = call(lambda client: client.events(group, after=after))
    if as_json:
        print_json(reply)
    elif reply.events:
        tables.write("\n".join(tables.event_line(event) for event in reply.events))


async def _follow(client: Client, group: str, after: int, as_json: bool) -> None:
    """Print the history as it grows; returns when the group is deleted."""

    def show(event: EventReply) -> None:
        tables.write(codec.write(event, nulls=True).decode() if as_json else tables.event_line(event))

    known = await client.events(group, after=after)
    for event in known.events:
        show(event)
    last = known.last
    while True:
        try:
            async for event in client.follow(group, last):
                show(event)
                last = event.number
        except Unreachable:  # it answered before, so it may come back
            await asyncio.sleep(RETRY_S)
        except Problem as problem:
            if problem.code == UnknownGroup.code:
                return
            raise
