"""What subcommands are made of: arguments, and the options that all share, before or after the subcommand."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hetrdzv import __version__
from hetrdzv.cli.types import FILE_TYPE, ParsedType
from hetrdzv.client import parse_server_urls
from hetrdzv.protocol.texts.ids import DEFAULT_PORT, check_id

DEFAULT_SERVER = f"http://127.0.0.1:{DEFAULT_PORT}"

ID_TYPE = ParsedType("id", check_id)
GROUP_ARGUMENT = click.argument("group", type=ID_TYPE)
NODE_ARGUMENT = click.argument("node", type=ID_TYPE)
RANK_OPTION = click.option(
    "--rank",
    "ranks",
    type=click.IntRange(0),
    multiple=True,
    metavar="N",
    help="Only of this global rank; may be repeated.",
)
ROUND_OPTION = click.option(
    "--round",
    "number",
    type=click.IntRange(1),
    metavar="N",
    help="Of round N: logs of one of the last three, stacks of one of the last three that hung (default: the newest).",
)
DRY_RUN_OPTION = click.option("--dry-run", is_flag=True, help="Only show what would happen.")
WIDE_OPTION = click.option("--wide", is_flag=True, help="Show more columns.")


@dataclass
class SharedOptions:
    """The options that all subcommands share; empty or None: not given."""

    server: tuple[str, ...] = (DEFAULT_SERVER,)
    token_file: Path | None = None
    ca_cert: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    as_json: bool = False


def get_shared_options() -> SharedOptions:
    """The shared options of the running command."""
    return click.get_current_context().ensure_object(SharedOptions)


def _store_option(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Store a shared option; one after the subcommand overrides the same one before it."""
    if value:
        setattr(ctx.ensure_object(SharedOptions), param.name or "", value)


SERVER_URLS_TYPE = ParsedType("URL[,URL...]", lambda text: tuple(parse_server_urls(text)))
FILE_OPTION_HELP = {
    "--token-file": "File with a token for the server (or HET_TOKEN).",
    "--ca-cert": "CA that signed the server's certificate, PEM (or HET_CA_CERT).",
    "--client-cert": "Certificate to present to the server, PEM (or HET_CLIENT_CERT).",
    "--client-key": "Key of --client-cert, PEM (or HET_CLIENT_KEY).",
}


def shared_options(*, of_subcommand: bool = False) -> list[click.Parameter]:
    """The options of `SharedOptions`; most are in the help of hetctl only, and only there from the environment."""
    help_ = f"URL of hetserver; several separated by commas. [default: {DEFAULT_SERVER}]"
    env = None if of_subcommand else "HET_SERVER"
    more: Any = {"expose_value": False, "callback": _store_option}
    return [
        click.Option(
            ["--server"],
            type=SERVER_URLS_TYPE,
            envvar=env,
            show_envvar=True,
            help=help_,
            hidden=of_subcommand,
            **more,
        ),
        *(
            click.Option([flag], type=FILE_TYPE, metavar="FILE", help=text, hidden=of_subcommand, **more)
            for flag, text in FILE_OPTION_HELP.items()
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the API's JSON.", **more),
    ]


@click.group(
    "hetctl",
    params=shared_options(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(__version__, prog_name="hetctl")
def hetctl_group() -> None:
    """Inspect the groups of a hetserver and act on them."""


def subcommand(short_help: str, *params: click.Parameter) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function a subcommand that takes the shared options."""
    return hetctl_group.command(short_help=short_help, params=[*shared_options(of_subcommand=True), *params])
