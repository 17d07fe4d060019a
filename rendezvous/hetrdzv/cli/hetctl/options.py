"""What subcommands are made of: the options that all share, and types of arguments."""

import math
import re
import shlex
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from hetrdzv.cli.hetctl.shell import completion
from hetrdzv.cli.hetctl.shell.connect import DEFAULT_SERVER, connect
from hetrdzv.cli.hetctl.shell.shared import Shared, shared_of
from hetrdzv.cli.hetctl.shell.shared import shared as shared
from hetrdzv.client import Client, servers_from
from hetrdzv.protocol.ids import checked_id

_F = TypeVar("_F", bound=Callable[..., Any])


# -- types of arguments ----------------------------------------------------------------------------------


class Id(click.ParamType[Any]):
    """A group id or node id.

    Args:
        names: those that a server knows, for completion; the second argument is the group that was typed.
    """

    name = "id"

    def __init__(self, names: Callable[[Client, str], Coroutine[Any, Any, Iterable[str]]]) -> None:
        self._names = names

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return checked_id(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        group = ctx.params.get("group") or ""
        return completion.known(
            lambda client: self._names(client, group), lambda: connect(shared_of(ctx)), incomplete
        )


async def _group_ids(client: Client, group: str) -> list[str]:
    return [one.group_id for one in (await client.groups()).groups]


async def _node_ids(client: Client, group: str) -> list[str]:
    found = await client.group(group)
    return list({*(one.node_id for one in found.nodes), *found.drained})


GROUP_ID, NODE_ID = Id(_group_ids), Id(_node_ids)


class _Servers(click.ParamType[Any]):
    """Server URLs, separated by commas."""

    name = "URL[,URL...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        try:
            return value if isinstance(value, tuple) else tuple(servers_from(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _ClusterName(click.ParamType[Any]):
    """The name of a cluster in the config file."""

    name = "NAME"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return completion.clusters(incomplete)


class Seconds(click.ParamType[Any]):
    """A number of seconds within bounds."""

    name = "S"

    def __init__(self, least: float, most: float) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a number of seconds, such as 5 or 0.5, without a unit", param, ctx)
        if not self._least <= seconds <= self._most:
            self.fail(f"{value} is not between {self._least} and {self._most}", param, ctx)
        return seconds


class Numbers(click.ParamType[Any]):
    """Whole numbers within bounds, separated by commas."""

    name = "N[,N...]"

    def __init__(self, least: int, most: int) -> None:
        self._number = click.IntRange(least, most)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        words: Any = value.split(",") if isinstance(value, str) else value
        return tuple(self._number.convert(word, param, ctx) for word in words)


class Words(click.ParamType[Any]):
    """A text that has to mean something to `reads`, which raises ValueError."""

    def __init__(self, name: str, reads: Callable[[str], object]) -> None:
        self.name, self._reads = name, reads

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            self._reads(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class Nnodes(click.ParamType[Any]):
    """`N` or `MIN:MAX`, like torchrun's."""

    name = "N|MIN:MAX"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", value)
        if found is None:
            self.fail(f"{value!r} must be N or MIN:MAX, for example 2 or 2:4", param, ctx)
        least, most = int(found[1]), int(found[2] or found[1])
        if not 0 < least <= most:
            self.fail(f"{value}: MIN must be at least 1, and MAX not below MIN", param, ctx)
        return least, most


class WorldSize(click.ParamType[Any]):
    """`N`, `MIN:MAX`, `MIN:` or `:MAX`, in slots."""

    name = "N|MIN:MAX"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(?=.*[0-9])([0-9]{0,9})(:?)([0-9]{0,9})", value)
        if found is None:
            self.fail(f"{value!r} must be N or MIN:MAX in slots, for example 8 or 8:16", param, ctx)
        least = int(found[1]) if found[1] else None
        most = (int(found[3]) if found[3] else None) if found[2] else least
        if 0 in (least, most) or (least is not None and most is not None and most < least):
            self.fail(f"{value}: MIN must be at least 1, and MAX not below MIN", param, ctx)
        return least, most


GROUP = click.argument("group", type=GROUP_ID)
NODE = click.argument("node", type=NODE_ID)
MAYBE_GROUP = click.argument("group", type=GROUP_ID, required=False)
RANKS = click.option(
    "--rank",
    type=click.IntRange(0),
    multiple=True,
    metavar="N",
    help="Only of this global rank; may be repeated.",
)
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
            flag = next((one for one in given if one.partition("=")[0] == error.option_name), None)
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
                type=_Servers(),
                envvar=None if hidden else "HET_SERVER",
                show_envvar=True,
                help=f"URL of hetserver; several separated by commas. [default: {DEFAULT_SERVER}]",
                hidden=hidden,
                expose_value=False,
                callback=_keep_server,
            ),
            click.option(
                "--cluster",
                type=_ClusterName(),
                help="A cluster of ~/.config/hetrdzv/config.toml, which has its server and token.",
                hidden=hidden,
                expose_value=False,
                callback=_keep,
            ),
        ):
            command = option(command)
        return command

    return add


def _keep_server(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Store the servers, and whether somebody has typed them."""
    _keep(ctx, param, value)
    if value:
        source = ctx.get_parameter_source(param.name or "")
        shared_of(ctx).server_from_environment = source is ParameterSource.ENVIRONMENT


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Store a shared option; one after the subcommand overrides the same one before it."""
    if value:
        setattr(ctx.ensure_object(Shared), param.name or "", value)
