"""What subcommands are made of: arguments, and the options that all share, before or after the subcommand."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from hetrdzv.cli.types import FILE, Typed
from hetrdzv.client import servers_from
from hetrdzv.protocol.texts.addresses import DEFAULT_PORT
from hetrdzv.protocol.texts.ids import checked_id

_F = TypeVar("_F", bound=Callable[..., Any])

DEFAULT_SERVER = f"http://127.0.0.1:{DEFAULT_PORT}"

ID = Typed("id", checked_id)
GROUP = click.argument("group", type=ID)
NODE = click.argument("node", type=ID)
RANKS = click.option(
    "--rank",
    "ranks",
    type=click.IntRange(0),
    multiple=True,
    metavar="N",
    help="Only of this global rank; may be repeated.",
)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only show what would happen.")
WIDE = click.option("--wide", is_flag=True, help="Show more columns.")


def of_round(help_: str) -> Callable[[_F], _F]:
    """The option `--round`, of what `help_` says."""
    return click.option("--round", "number", type=click.IntRange(1), metavar="N", help=help_)


@dataclass(slots=True)
class Shared:
    """The options that all subcommands share; empty or None: not given."""

    server: tuple[str, ...] = (DEFAULT_SERVER,)
    token_file: Path | None = None
    ca_cert: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    as_json: bool = False


def shared() -> Shared:
    """The shared options of the running command."""
    return click.get_current_context().ensure_object(Shared)


def _store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Store a shared option; one after the subcommand overrides the same one before it."""
    if value:
        setattr(ctx.ensure_object(Shared), param.name or "", value)


def takes_shared(function: _F, *, hidden: bool = False) -> _F:
    """Add the shared options.

    Args:
        hidden: leave most out of the help: they are in that of hetctl itself.
    """
    servers = Typed("URL[,URL...]", lambda text: tuple(servers_from(text)))
    servers_help = f"URL of hetserver; several separated by commas. [default: {DEFAULT_SERVER}]"
    options: list[tuple[str, dict[str, Any]]] = [
        ("--server", {"type": servers, "help": servers_help, "show_envvar": True})
    ]
    options += [
        (flag, {"type": FILE, "metavar": "FILE", "help": text})
        for flag, text in (
            ("--token-file", "File with a token for the server (or HET_TOKEN)."),
            ("--ca-cert", "CA that signed the server's certificate, PEM (or HET_CA_CERT)."),
            ("--client-cert", "Certificate to present to the server, PEM (or HET_CLIENT_CERT)."),
            ("--client-key", "Key of --client-cert, PEM (or HET_CLIENT_KEY)."),
        )
    ]
    if not hidden:
        options[0][1]["envvar"] = "HET_SERVER"
    json = click.option(
        "--json",
        "as_json",
        is_flag=True,
        expose_value=False,
        callback=_store,
        help="Print the API's JSON.",
    )
    function = json(function)
    for flag, more in reversed(options):
        function = click.option(flag, hidden=hidden, expose_value=False, callback=_store, **more)(function)
    return function


def command(short_help: str) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function a subcommand that takes the shared options; add it to `COMMANDS` in main.py."""

    def make(function: Callable[..., None]) -> click.Command:
        return click.command(short_help=short_help)(takes_shared(function, hidden=True))

    return make
