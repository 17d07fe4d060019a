"""hetctl: look at groups and act on them; a command line over the typed client."""

import asyncio
import math
import os
import re
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import BaseModel

from hetrdzv import __version__, access
from hetrdzv.cli import tables
from hetrdzv.client import DEFAULT_PORT, Client, servers_from
from hetrdzv.core.model import OnJoin
from hetrdzv.errors import HetError, Problem, UnknownGroup, Unreachable
from hetrdzv.tls import ClientTls
from hetrdzv.wire import EventReply, GroupReply, SpecFields

RETRY_S = 1.0
"""How long to wait for a server that went away while its history was followed (seconds)."""

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(slots=True)
class _Settings:
    """The options that every command shares."""

    server: tuple[str, ...] = ()
    token_file: Path | None = None
    ca_cert: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    as_json: bool = False


class _Id(click.ParamType[Any]):
    """A group id or node id."""

    name = "id"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", value) or value in (".", ".."):
            self.fail(f"{value!r} must be 1 to 128 letters, digits, '.', '_' or '-'", param, ctx)
        return value


class _Servers(click.ParamType[Any]):
    """URLs of servers, separated by commas."""

    name = "URL[,URL...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        try:
            return value if isinstance(value, tuple) else tuple(servers_from(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Seconds(click.ParamType[Any]):
    """A finite number of seconds; which values make sense is the server's to say."""

    name = "S"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


class _Nnodes(click.ParamType[Any]):
    """`N` or `MIN:MAX`, as torchrun takes it."""

    name = "N|MIN:MAX"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", value)
        if found is None:
            self.fail(f"{value!r} must be N or MIN:MAX", param, ctx)
        low, high = found.groups()
        return int(low), int(high or low)


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keep a shared option; one behind the command wins over the same one before it."""
    if value:
        setattr(ctx.ensure_object(_Settings), param.name or "", value)


_FILES = {
    "--token-file": "File with a token of the server (or HET_TOKEN).",
    "--ca-cert": "Authority of the server's certificate, PEM (or HET_CA_CERT).",
    "--client-cert": "Certificate to show to the server, PEM (or HET_CLIENT_CERT).",
    "--client-key": "Key of --client-cert, PEM (or HET_CLIENT_KEY).",
}


def _shared(hidden: bool) -> Callable[[_F], _F]:
    """The options that are taken before and behind the name of a command."""

    def add(command: _F) -> _F:
        for option in (
            click.option(
                "--json",
                "as_json",
                is_flag=True,
                help="Print the API's JSON.",
                expose_value=False,
                callback=_remember,
            ),
            *(
                click.option(
                    flag,
                    type=click.Path(path_type=Path),
                    metavar="FILE",
                    help=text,
                    hidden=hidden,
                    expose_value=False,
                    callback=_remember,
                )
                for flag, text in reversed(_FILES.items())
            ),
            click.option(
                "--server",
                type=_Servers(),
                envvar=None if hidden else "HET_SERVER",
                default=None if hidden else f"http://127.0.0.1:{DEFAULT_PORT}",
                show_default=True,
                show_envvar=True,
                help="Where hetserver is.",
                hidden=hidden,
                expose_value=False,
                callback=_remember,
            ),
        ):
            command = option(command)
        return command

    return add


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@_shared(hidden=False)
@click.version_option(__version__, prog_name="hetctl")
def cli() -> None:
    """Look at groups of a hetserver and act on them."""


_GROUP = click.argument("group", type=_Id())
_NODE = click.argument("node", type=_Id())


@cli.command(short_help="Create a group.")
@_GROUP
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT ARGS...]")
@click.option("--nnodes", type=_Nnodes(), help="How many nodes the job wants.")
@click.option("--max-restarts", type=int, metavar="N", help="Restarts of the whole group (default 3).")
@click.option(
    "--join-timeout-s", type=_Seconds(), help="The group fails when its nodes are not there (default 600)."
)
@click.option("--last-call-s", type=_Seconds(), help="A round with enough nodes waits for more (default 10).")
@click.option("--replace-wait-s", type=_Seconds(), help="A loss waits for a replacement (default 0).")
@click.option(
    "--stop-timeout-s", type=_Seconds(), help="Between SIGTERM and SIGKILL of workers (default 30)."
)
@click.option("--lease-s", type=_Seconds(), help="The server believes in a silent node (default 5).")
@click.option(
    "--max-disconnect-s", type=_Seconds(), help="Without any server agents stop workers (default 600)."
)
@click.option(
    "--on-join",
    type=click.Choice([way.value for way in OnJoin]),
    help="What a joiner does (default restart).",
)
@_shared(hidden=True)
def create(group: str, command: tuple[str, ...], nnodes: tuple[int, int] | None, **fields: object) -> None:
    """Create GROUP with the given fields and the defaults of the others.

    Agents that are started without a script run SCRIPT. One that exists must have the same values.
    """
    spec = {name: value for name, value in fields.items() if value is not None}
    if nnodes is not None:
        spec["min_nodes"], spec["max_nodes"] = nnodes
    if command:
        spec["command"] = list(command)
    reply = _call(lambda client: client.put(group, SpecFields.model_validate(spec)))
    _tell(reply, f"group '{group}' is there, {_standing(reply)}")


@cli.command(short_help="Show all groups, or one with its nodes.")
@click.argument("group", type=_Id(), required=False)
@_shared(hidden=True)
def status(group: str | None) -> None:
    """Show all groups, or GROUP with its nodes."""
    if group is None:
        groups = _call(lambda client: client.groups())
        if _as_json():
            _print_json(groups)
        elif groups.groups:
            tables.show(tables.groups_table(groups.groups))
        else:
            tables.write("no groups; the first agent that joins makes one, or: hetctl create GROUP")
        return
    reply = _call(lambda client: client.group(group))
    if _as_json():
        _print_json(reply)
    else:
        tables.show(*tables.group_view(reply))


@cli.command(short_help="Show a group's history, or follow it.")
@_GROUP
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C, or until the group is deleted.")
@click.option(
    "--after", type=click.IntRange(min=0), default=0, metavar="N", help="Only events after number N."
)
@_shared(hidden=True)
def events(group: str, follow: bool, after: int) -> None:
    """Show the history of GROUP: number, local time, what happened."""
    if follow:
        try:
            _call(lambda client: _follow(client, group, after, _as_json()))
        except KeyboardInterrupt:
            return
        _complain(f"group '{group}' is gone: its history ends here")
        return
    reply = _call(lambda client: client.events(group, after))
    if _as_json():
        _print_json(reply)
    elif reply.events:
        tables.write("\n".join(tables.event_line(event) for event in reply.events))


async def _follow(client: Client, group: str, after: int, as_json: bool) -> None:
    """Print the history as it grows; returns when a group that was there is there no more."""

    def show(event: EventReply) -> None:
        tables.write(event.model_dump_json() if as_json else tables.event_line(event))

    known = await client.events(group, after)
    for event in known.events:
        show(event)
    last = known.last
    while True:
        try:
            async for event in client.follow(group, last):
                show(event)
                last = event.number
        except Unreachable:  # a server that answered before may come back
            await asyncio.sleep(RETRY_S)
        except Problem as problem:
            if problem.code == UnknownGroup.code:
                return
            raise


@cli.command(short_help="End a group's round so that another forms.")
@_GROUP
@_shared(hidden=True)
def restart(group: str) -> None:
    """End the round of GROUP so that another forms, or begin a finished job anew; costs no restart."""
    reply = _call(lambda client: client.restart(group))
    _tell(reply, f"group '{group}' restarts, {_standing(reply)}")


@cli.command(short_help="End a group's job.")
@_GROUP
@_shared(hidden=True)
def cancel(group: str) -> None:
    """End the job of GROUP: all workers are stopped, agents exit with 3."""
    reply = _call(lambda client: client.cancel(group))
    live = reply.counts.nodes
    stopping = f"; {live} node{'s are' if live != 1 else ' is'} told to stop" if live else ""
    _tell(reply, f"group '{group}' is cancelled{stopping}")


@cli.command(short_help="Take a node out of a group.")
@_GROUP
@_NODE
@_shared(hidden=True)
def drain(group: str, node: str) -> None:
    """Take NODE out of GROUP until it is undrained; its agent exits with 4."""
    reply = _call(lambda client: client.drain(group, node))
    _tell(reply, f"node '{node}' is drained; group '{group}' is {_standing(reply)}")


@cli.command(short_help="Let a drained node in again.")
@_GROUP
@_NODE
@_shared(hidden=True)
def undrain(group: str, node: str) -> None:
    """Let NODE into GROUP again."""
    reply = _call(lambda client: client.undrain(group, node))
    _tell(reply, f"node '{node}' may join group '{group}' again: start its agent there if it has exited")


@cli.command(short_help="Forget a group.")
@_GROUP
@_shared(hidden=True)
def delete(group: str) -> None:
    """Forget GROUP, whose nodes are gone or whose job is over. With --json nothing is printed."""
    _call(lambda client: client.delete(group))
    if not _as_json():
        tables.write(f"group '{group}' is deleted")


def _settings() -> _Settings:
    settings: _Settings = click.get_current_context().ensure_object(_Settings)
    return settings


def _as_json() -> bool:
    return _settings().as_json


def _call(ask: Callable[[Client], Coroutine[Any, Any, _T]]) -> _T:
    """Ask the server."""
    settings = _settings()
    token = access.client_token(settings.token_file)
    files = {name: getattr(settings, name) for name in ("ca_cert", "client_cert", "client_key")}
    tls = ClientTls.of(files, os.environ)

    async def call() -> _T:
        async with client:
            return await ask(client)

    try:
        client = Client(
            settings.server,
            token=token,
            renew_token=lambda: access.token_again(settings.token_file),  # a history is followed for days
            tls=tls,
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    return asyncio.run(call())


def _tell(reply: GroupReply, text: str) -> None:
    if _as_json():
        _print_json(reply)
    else:
        tables.write(tables.one_line(text))


def _standing(group: GroupReply) -> str:
    return f"{group.state}: {group.why}"


def _print_json(reply: BaseModel) -> None:
    tables.write(reply.model_dump_json(indent=2))


def _complain(text: str) -> None:
    click.echo(f"hetctl: {tables.one_line(text)}", err=True)


def run(argv: Sequence[str]) -> int:
    """Run a command line and return its exit status: 0, 1 after an error, 2 for a wrong command line."""
    try:
        status = cli.main(list(argv), prog_name="hetctl", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        see = f"; see {error.ctx.command_path} --help" if error.ctx is not None else ""
        _complain(error.format_message().rstrip(".") + see)
        return 2
    except click.Abort:
        return 130
    except click.ClickException as error:
        _complain(error.format_message())
    except HetError as error:
        _complain(str(error))
    except OSError as error:
        _complain(f"the output cannot be written: {error.strerror or error}")
    return 1


def main() -> None:
    """The entry point `hetctl`."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
