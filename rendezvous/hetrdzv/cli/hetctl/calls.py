"""What subcommands do with a server: call it, print its reply as a sentence or as JSON."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from hetrdzv.cli.hetctl import plan_table, tables
from hetrdzv.cli.hetctl.connect import connect
from hetrdzv.cli.hetctl.options import shared
from hetrdzv.client import Client
from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import HetError, NoTls, Problem, Unavailable, UnknownGroup, Unreachable
from hetrdzv.protocol.facts.who import Nodes
from hetrdzv.protocol.pages import GroupReply, GroupSummary
from hetrdzv.protocol.requests.plans import Changes
from hetrdzv.words.phrasing import predicate

HELP = "start hetserver there, or name another server with --server or HET_SERVER"

_T = TypeVar("_T")


def call(ask: Callable[[Client], Coroutine[Any, Any, _T]]) -> _T:
    """Run a coroutine with a client of the server that the shared options name."""
    options = shared()

    async def run() -> _T:
        async with connect(options, complain) as client:
            try:
                return await ask(client)
            except (Unavailable, NoTls):
                raise
            except Unreachable as error:
                raise click.ClickException(f"{error}; {HELP}") from None
            except Problem as problem:
                if problem.code != UnknownGroup.code:
                    raise
                raise click.ClickException(f"{problem}{await _known_groups(client)}") from None

    return asyncio.run(run())


async def _known_groups(client: Client) -> str:
    """The first few groups that there are, to be put after a sentence."""
    try:
        there = [group.group_id for group in (await client.groups()).groups]
    except HetError:
        return ""
    return f"; there {'is' if len(there) == 1 else 'are'} {Nodes.of(there)} (see hetctl get)" if there else ""


def tell(reply: GroupReply, text: str) -> None:
    """Print a sentence about what was done, or the reply with --json."""
    if shared().as_json:
        print_json(reply)
    else:
        tables.write(tables.one_line(text))


def standing(group: GroupSummary) -> str:
    """A group's state and the reason for it: `waiting: 1 of 2 nodes ready`."""
    return f"{group.shown_state}: {tables.one_line(tables.why(group))}"


def stands(group: GroupSummary) -> str:
    """The same, to be put after the group's name: `is waiting: 1 of 2 nodes ready`."""
    return f"{predicate(group.shown_state)}: {tables.one_line(tables.why(group))}"


def show_plan(group: str, request: Changes) -> None:
    """Ask what would happen to a group, and print that as a table or as JSON."""
    reply = call(lambda client: client.plan(group, request))
    if shared().as_json:
        print_json(reply)
    else:
        plan_table.show(reply, request)


def print_json(reply: object) -> None:
    """Print a reply as the API sends it."""
    tables.write(codec.write(reply, nulls=True, indent=2).decode())


def complain(text: str) -> None:
    """Print an error or a warning to stderr, in one line."""
    click.echo(f"hetctl: {tables.one_line(text)}", err=True)
