"""What subcommands do with a server: call it, and print its reply as a view, a sentence or JSON."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

import click
from rich.console import RenderableType

from hetrdzv.auth.files import find_client_token, reread_token, warn_if_exposed
from hetrdzv.auth.tls import ClientTls
from hetrdzv.cli.hetctl import printing
from hetrdzv.cli.hetctl.options import get_shared_options
from hetrdzv.client import Client
from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import HetError, NotServing, NotTrusted, Problem, UnknownGroup, Unreachable
from hetrdzv.protocol.replies import GroupSummary
from hetrdzv.protocol.texts.node_rank_lists import NodeList
from hetrdzv.protocol.texts.phrasing import state_predicate

NO_SERVER_ADVICE = "start hetserver there, or name another server with --server or HET_SERVER"

RETRY_INTERVAL_S = 2.0
"""How long to pause between two requests (seconds)."""

_T = TypeVar("_T")
Ask = Callable[[Client], Coroutine[Any, Any, _T]]


def make_client() -> Client:
    """A client of the server that the shared options name."""
    options = get_shared_options()
    if options.token_file is not None:
        warn_if_exposed("token file", options.token_file, print_warning)
    files = {name: getattr(options, name) for name in ("ca_cert", "client_cert", "client_key")}
    try:
        return Client(
            options.server,
            token=find_client_token(options.token_file),
            renew_token=lambda: reread_token(options.token_file),  # `events --follow` may run for days
            tls=ClientTls.from_flags(files, os.environ),
        )
    except ValueError as error:  # the options contradict each other
        raise click.ClickException(str(error)) from None


def call_server(ask: Ask[_T], *, interrupted: int = 130) -> _T:
    """Run a coroutine with a client of the server. An error ends hetctl with status 1, Ctrl-C with `interrupted`."""

    async def run() -> _T:
        async with make_client() as client:
            try:
                return await ask(client)
            except Problem as problem:
                if problem.code == UnknownGroup.code:
                    # The first answer counts, whatever becomes of this one.
                    with contextlib.suppress(HetError):
                        known = NodeList.of(group.group_id for group in (await client.groups()).groups)
                        problem.args = (f"{problem}; groups: {known or 'none yet'}",)
                raise

    try:
        return asyncio.run(run())
    except KeyboardInterrupt:
        sys.exit(interrupted)
    except HetError as error:
        unreached = isinstance(error, Unreachable) and not isinstance(error, NotServing | NotTrusted)
        text = f"{error}; {NO_SERVER_ADVICE}" if unreached else str(error)
        raise click.ClickException(printing.one_line(text)) from None


async def retry_until_answered(ask: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Ask until a server answers: one did before, and may come back."""
    complained = False
    while True:
        try:
            return await ask()
        except Unreachable as error:
            if not complained:
                print_warning(f"{error}; trying again")
            complained = True
        await asyncio.sleep(RETRY_INTERVAL_S)


async def none_on_error(code: str, reply: Awaitable[_T]) -> _T | None:
    """A reply; None: the server answered with a problem that has this code."""
    try:
        return await reply
    except Problem as problem:
        if problem.code != code:
            raise
        return None


# -- printing ----------------------------------------------------------------------------------------------


def print_result(reply: object, text: str) -> None:
    """Print a sentence about what was done, or the reply with --json."""
    if get_shared_options().as_json:
        print_json(reply)
    else:
        printing.print_line(printing.one_line(text))


def describe_state(group: GroupSummary) -> str:
    """A group's state and the reason for it, to be put after its name: `is waiting: 1 of 2 nodes ready`."""
    return f"{state_predicate(group.display_state)}: {group.why}"


def print_json(reply: object, *, indent: int | None = 2) -> None:
    """Print a reply as the API sends it."""
    printing.print_line(codec.to_json(reply, nulls=True, indent=indent).decode())


def print_warning(text: str) -> None:
    """Print a remark to stderr, in one line."""
    click.echo(f"hetctl: {printing.one_line(text)}", err=True)


def show_reply(ask: Ask[_T], view: Callable[[_T], Iterable[RenderableType]]) -> None:
    """Show what a server says: its JSON, or what `view` makes of it."""
    reply = call_server(ask)
    if get_shared_options().as_json:
        print_json(reply)
    elif parts := list(view(reply)):
        printing.print_to_stdout(*parts)
