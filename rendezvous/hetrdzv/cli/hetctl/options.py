"""What subcommands are made of: the options that all share, which may stand before and after them, and types."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from hetrdzv.client import servers_from
from hetrdzv.protocol.texts.addresses import DEFAULT_PORT
from hetrdzv.protocol.texts.ids import checked_id
from hetrdzv.settings import ParamType

_F = TypeVar("_F", bound=Callable[..., Any])

DEFAULT_SERVER = f"http://127.0.0.1:{DEFAULT_PORT}"


class Typed(ParamType):
    """A value that is read from its text.

    Args:
        name: what help shows for it.
        reads: raises ValueError, which says what is wrong with a text.
    """

    def __init__(self, name: str, reads: Callable[[str], Any]) -> None:
        self.name, self._reads = name, reads

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._reads(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


GROUP_ID = NODE_ID = Typed("id", checked_id)
GROUP = click.argument("group", type=GROUP_ID)
NODE = click.argument("node", type=NODE_ID)
RANKS = click.option(
    "--rank",
    type=click.IntRange(0),
    multiple=True,
    metavar="N",
    help="Only of this global rank; may be repeated.",
)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only show what would happen.")
WATCH = click.option("--watch", "-w", is_flag=True, help="Show it again whenever it changes, until Ctrl-C.")


def of_round(help_: str) -> Callable[[_F], _F]:
    """The option `--round`, of what `help_` says."""
    return click.option("--round", "number", type=click.IntRange(1), metavar="N", help=help_)


# -- options of all subcommands --------------------------------------------------------------------------


@dataclass(slots=True)
class Shared:
    """The options that all subcommands share; empty or None: not given."""

    server: tuple[str, ...] = ()
    token_file: Path | None = None
    ca_cert: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    as_json: bool = False
    output: str = ""


def shared() -> Shared:
    """The shared options of the running command."""
    options: Shared = click.get_current_context().ensure_object(Shared)
    options.as_json = options.as_json or options.output == "json"
    return options


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Store a shared option; one after the subcommand overrides the same one before it."""
    if value:
        setattr(ctx.ensure_object(Shared), param.name or "", value)


def takes_shared(function: _F, *, hidden: bool = False) -> _F:
    """Add the shared options.

    Args:
        hidden: leave them out of the help: they are in that of hetctl itself.
    """

    def add(*flags: str, **more: Any) -> None:
        nonlocal function
        more = {"hidden": hidden, **more}
        function = click.option(*flags, expose_value=False, callback=_keep, **more)(function)

    add("--json", "as_json", is_flag=True, help="Print the API's JSON.", hidden=False)
    for flag, text in (
        ("--client-key", "Key of --client-cert, PEM (or HET_CLIENT_KEY)."),
        ("--client-cert", "Certificate to present to the server, PEM (or HET_CLIENT_CERT)."),
        ("--ca-cert", "CA that signed the server's certificate, PEM (or HET_CA_CERT)."),
        ("--token-file", "File with a token for the server (or HET_TOKEN)."),
    ):
        add(flag, type=click.Path(path_type=Path), metavar="FILE", help=text)
    add(
        "--server",
        type=Typed("URL[,URL...]", lambda text: tuple(servers_from(text))),
        envvar=None if hidden else "HET_SERVER",
        show_envvar=True,
        help=f"URL of hetserver; several separated by commas. [default: {DEFAULT_SERVER}]",
    )
    return function


def command(
    short_help: str, cls: type[click.Command] = click.Command, outputs: Sequence[str] = ()
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function a subcommand that takes the shared options; add it to `COMMANDS` in main.py.

    Args:
        outputs: what it can print beside the usual and JSON.
    """

    def make(function: Callable[..., None]) -> click.Command:
        if cls is not ScriptLast:  # a script is more likely to have such a flag
            function = click.option(
                "--output",
                "-o",
                type=click.Choice(("json", *outputs)),
                help="Print that instead; json is what --json prints.",
                hidden=not outputs,
                expose_value=False,
                callback=_keep,
            )(function)
        return click.command(short_help=short_help, cls=cls)(takes_shared(function, hidden=True))

    return make


class ScriptLast(click.Command):
    """A command that ends with a script and its arguments, which `--` keeps apart from its own flags."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's, but a flag that it does not know may be the script's.

        Raises:
            click.UsageError: says where `--` belongs.
        """
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            what = error.format_message()
            raise click.UsageError(
                f"{what} If it is the script's, put -- before the script: {ctx.command_path} GROUP -- SCRIPT ARGS",
                ctx,
            ) from None
