"""What subcommands are made of: the options that all share, and types of arguments."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from hetrdzv.cli.hetctl.connect import DEFAULT_SERVER
from hetrdzv.cli.hetctl.shared import Shared, shared_of
from hetrdzv.cli.hetctl.shared import shared as shared
from hetrdzv.client import servers_from
from hetrdzv.protocol.texts.ids import checked_id
from hetrdzv.settings import ParamType

_F = TypeVar("_F", bound=Callable[..., Any])


# -- types of arguments ----------------------------------------------------------------------------------


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


def of_round(help_: str) -> Callable[[_F], _F]:
    """The option `--round`, of what `help_` says."""
    return click.option("--round", "number", type=click.IntRange(1), metavar="N", help=help_)


DRY_RUN = click.option("--dry-run", is_flag=True, help="Only show what would happen.")


class ScriptLast(click.Command):
    """A command that ends with a script and its arguments, which `--` keeps apart from its own flags."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's, but a flag behind the script that is not this command's is taken for the script's.

        Raises:
            click.UsageError: says where `--` belongs.
        """
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            flag = next((word for word in given if word.partition("=")[0] == error.option_name), None)
            before = given[: given.index(flag)] if flag is not None else []
            words = self.make_parser(ctx).parse_args(list(before))[0].get("command")
            if (
                not isinstance(words, tuple | list) or not words
            ):  # click has a value of its own for "not given"
                raise
            script = len(before) - before[::-1].index(words[0]) - 1
            right = shlex.join([*given[:script], "--", *given[script:]])
            raise click.UsageError(
                f"{self.name} has no flag {error.option_name}; if it is the script's, put -- before the script: "
                f"{ctx.command_path} {right}",
                ctx,
            ) from None


# -- decorators of commands ------------------------------------------------------------------------------

_FILES = {
    "--token-file": "File with a token for the server (or HET_TOKEN).",
    "--ca-cert": "CA that signed the server's certificate, PEM (or HET_CA_CERT).",
    "--client-cert": "Certificate to present to the server, PEM (or HET_CLIENT_CERT).",
    "--client-key": "Key of --client-cert, PEM (or HET_CLIENT_KEY).",
}


def command(
    short_help: str, cls: type[click.Command] = click.Command, outputs: Sequence[str] = ()
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function a subcommand that takes the shared options; add it to `SUBCOMMANDS` in main.py.

    Args:
        outputs: what it can print beside the usual and JSON.
    """

    def make(function: Callable[..., None]) -> click.Command:
        made = takes_shared(hidden=True)(function)
        if cls is not ScriptLast:  # a script is more likely to have such a flag
            made = _output_option(outputs)(made)
        return click.command(short_help=short_help, cls=cls)(made)

    return make


def _output_option(outputs: Sequence[str]) -> Callable[[_F], _F]:
    return click.option(
        "--output",
        "-o",
        type=click.Choice(("json", *outputs)),
        help="Print that instead; json is what --json prints.",
        hidden=not outputs,
        expose_value=False,
        callback=_keep_output,
    )


def _keep_output(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        options = shared_of(ctx)
        options.output = value
        options.as_json = options.as_json or value == "json"


def takes_shared(*, hidden: bool) -> Callable[[_F], _F]:
    """Add the shared options, which may stand before and after the subcommand.

    Args:
        hidden: leave them out of the help: they are in that of hetctl itself.
    """

    def add(command: _F) -> _F:
        for option in (
            click.option(
                "--json",
                "as_json",
                is_flag=True,
                help="Print the API's JSON.",
                expose_value=False,
                callback=_keep,
            ),
            *(
                click.option(
                    flag,
                    type=click.Path(path_type=Path),
                    metavar="FILE",
                    help=text,
                    hidden=hidden,
                    expose_value=False,
                    callback=_keep,
                )
                for flag, text in reversed(_FILES.items())
            ),
            click.option(
                "--server",
                type=Typed("URL[,URL...]", lambda text: tuple(servers_from(text))),
                envvar=None if hidden else "HET_SERVER",
                show_envvar=True,
                help=f"URL of hetserver; several separated by commas. [default: {DEFAULT_SERVER}]",
                hidden=hidden,
                expose_value=False,
                callback=_keep,
            ),
        ):
            command = option(command)
        return command

    return add


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Store a shared option; one after the subcommand overrides the same one before it."""
    if value:
        setattr(ctx.ensure_object(Shared), param.name or "", value)
