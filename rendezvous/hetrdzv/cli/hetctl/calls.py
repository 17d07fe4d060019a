"""What subcommands do with a server: call it, print its reply as a sentence or as JSON."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, TypeVar

import click
from pydantic import BaseModel

from hetrdzv.cli.hetctl import picture, tables
from hetrdzv.cli.hetctl.options import shared
from hetrdzv.cli.hetctl.shell.connect import connect
from hetrdzv.client import Client
from hetrdzv.protocol.clock_times import with_clock_times
from hetrdzv.protocol.errors import Problem
from hetrdzv.protocol.wire import GroupReply, GroupSummary, PlanReply, PlanRequest

_T = TypeVar("_T")


def call(ask: Callable[[Client], Coroutine[Any, Any, _T]]) -> _T:
    """Run a coroutine with a client of the server that the shared options name."""
    options = shared()

    async def run() -> _T:
        async with connect(options, complain) as client:
            return await ask(client)

    return asyncio.run(run())


def tell(reply: GroupReply, text: str) -> None:
    """Print a sentence about what was done, or the reply with --json."""
    if shared().as_json:
        print_json(reply)
    else:
        tables.write(tables.one_line(text))


def standing(group: GroupSummary) -> str:
    """A group's state and the reason for it."""
    return f"{group.state}: {with_clock_times(group.why, datetime.now().astimezone())}"


def show_plan(group: str, request: PlanRequest) -> None:
    """Ask what would happen to a group, and print that as a picture or as JSON."""
    try:
        reply = call(lambda client: client.plan(group, request))
    except Problem as problem:
        if problem.code != "no_such_route":
            raise
        raise click.ClickException(
            "this server makes no plans, since it is older: upgrade hetserver"
        ) from None
    tell_plan(reply, request)


def tell_plan(reply: PlanReply, request: PlanRequest) -> None:
    """Print what would happen, as a picture or as JSON."""
    if shared().as_json:
        print_json(reply)
    else:
        picture.show(reply, request)


def print_json(reply: BaseModel) -> None:
    """Print a reply as the API sends it."""
    tables.write(reply.model_dump_json(indent=2))


def complain(text: str) -> None:
    """Print an error or a warning to stderr, in one line."""
    click.echo(f"hetctl: {tables.one_line(text)}", err=True)
