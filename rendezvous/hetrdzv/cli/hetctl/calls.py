"""What subcommands do with a server: call it, print its reply as a view, a sentence or JSON, once or as it changes."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from hetrdzv.auth.client_token import client_token, reread_token
from hetrdzv.auth.tls import ClientTls
from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.options import DEFAULT_SERVER, shared
from hetrdzv.client import Client
from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import HetError, NoTls, Problem, Unavailable, UnknownGroup, Unreachable
from hetrdzv.protocol.pages import GroupReply, GroupSummary
from hetrdzv.protocol.texts.phrasing import predicate
from hetrdzv.protocol.texts.who import Nodes

HELP = "start hetserver there, or name another server with --server or HET_SERVER"

EVERY_S = 2.0
"""How long to pause between two looks (seconds)."""

_T = TypeVar("_T")


def connect() -> Client:
    """A client of the server that the shared options name.

    Raises:
        click.ClickException: the options contradict each other.
        HetError: a token or a certificate cannot be used.
    """
    options = shared()
    files = {name: getattr(options, name) for name in ("ca_cert", "client_cert", "client_key")}
    try:
        return Client(
            options.server or (DEFAULT_SERVER,),
            token=client_token(options.token_file, complain),
            renew_token=lambda: reread_token(options.token_file),  # `events --follow` may run for days
            tls=ClientTls.of(files, os.environ),
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def call(ask: Callable[[Client], Coroutine[Any, Any, _T]]) -> _T:
    """Run a coroutine with a client of the server."""

    async def run() -> _T:
        async with connect() as client:
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


# -- printing ----------------------------------------------------------------------------------------------


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


def print_json(reply: object) -> None:
    """Print a reply as the API sends it."""
    tables.write(codec.write(reply, nulls=True, indent=2).decode())


def complain(text: str) -> None:
    """Print an error or a warning to stderr, in one line."""
    click.echo(f"hetctl: {tables.one_line(text)}", err=True)


# -- looking -----------------------------------------------------------------------------------------------


def look(
    ask: Callable[[Client], Coroutine[Any, Any, _T]],
    view: Callable[[_T], Iterable[RenderableType]],
    *,
    watch: bool = False,
) -> None:
    """Show what a server says, once or for as long as the person wants to see it.

    Args:
        view: the reply as tables and lines.
        watch: go on until Ctrl-C: redrawn on a terminal, elsewhere again whenever something has changed.
    """
    if not watch:
        _show(call(ask), view)
    elif shared().as_json or not sys.stdout.isatty():
        _until_interrupted(lambda client: _follow(client, ask, view))
    else:
        last: list[_T] = []
        _until_interrupted(lambda client: _redraw(client, ask, view, last))
        _show(last[-1], view)


def _show(reply: _T, view: Callable[[_T], Iterable[RenderableType]]) -> None:
    if shared().as_json:
        print_json(reply)
    elif parts := list(view(reply)):
        tables.show(*parts)


def _until_interrupted(ask: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    try:
        call(ask)
    except KeyboardInterrupt:
        return


async def _follow(
    client: Client,
    ask: Callable[[Client], Coroutine[Any, Any, _T]],
    view: Callable[[_T], Iterable[RenderableType]],
) -> None:
    """Print a reply again whenever something in it has changed; a server that answered before may come back."""
    before: Any = None
    answered = away = False
    while True:
        try:
            reply = await ask(client)
        except Unreachable as error:
            if not answered:
                raise
            if not away:
                complain(f"{error}; trying again")
            away = True
        else:
            answered, away = True, False
            document = codec.write(reply, nulls=True).decode()
            if (now := without_moments(json.loads(document))) != before:
                before = now
                tables.write(document) if shared().as_json else tables.show(*view(reply))
        await asyncio.sleep(EVERY_S)


async def _redraw(
    client: Client,
    ask: Callable[[Client], Coroutine[Any, Any, _T]],
    view: Callable[[_T], Iterable[RenderableType]],
    last: list[_T],
) -> None:
    """Show the newest reply on the terminal's other screen; `last` gets it."""
    last[:] = [await ask(client)]
    with Live(console=tables.new_console(), screen=True, auto_refresh=False, transient=True) as live:
        note: list[Text] = []
        while True:
            live.update(Group(*note, *view(last[-1])), refresh=True)
            await asyncio.sleep(EVERY_S)
            try:
                last[:], note = [await ask(client)], []
            except Unreachable as error:
                note = [Text(f"{tables.one_line(str(error))}; trying again", style="red")]


def without_moments(document: Any) -> Any:
    """What of a reply stays as long as nothing happens: without how long ago things were, and for how much longer."""
    match document:
        case dict():
            has_reason = document.get("reason") is not None
            return {
                name: value if name == "spec" else without_moments(value)
                for name, value in document.items()
                if not (_passes(name) and isinstance(value, float | int))
                and not (has_reason and name == "why")
            }
        case list():
            return [without_moments(value) for value in document]
        case _:
            return document


def _passes(name: str) -> bool:
    """Whether a field is about time that passes."""
    return name in ("clock", "waiting") or name.endswith(("_s", "_s_ago"))
