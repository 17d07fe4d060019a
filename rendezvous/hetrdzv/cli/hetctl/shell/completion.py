"""Completion of commands, flags, groups and nodes in bash, zsh and fish; click does the rest."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from hetrdzv.cli.hetctl.shell.clusters import config_path, read
from hetrdzv.client import Client
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.texts.ids import is_id

SHELLS = ("bash", "zsh", "fish")

VARIABLE = "_HETCTL_COMPLETE"
"""Set by the shell when it wants to know how a command line can go on; click's name for it."""

PATIENCE_S = 2.0
"""How long a person who pressed Tab waits for names at most (seconds)."""


def script(shell: str) -> str:
    """What a shell has to be told so that it completes hetctl's command lines."""
    kind = get_completion_class(shell)
    assert kind is not None, shell
    return kind(click.Group("hetctl"), {}, "hetctl", VARIABLE).source()


def known(
    ask: Callable[[Client], Coroutine[Any, Any, Iterable[str]]], connect: Callable[[], Client], typed: str
) -> list[CompletionItem]:
    """Names that a server knows and that begin with what was typed; none if it does not answer soon.

    What is no id is left out: bash would put it on the command line as it is.
    """

    async def asked() -> list[str]:
        async with asyncio.timeout(PATIENCE_S), connect() as client:
            return sorted(name for name in await ask(client) if name.startswith(typed) and is_id(name))

    with contextlib.suppress(HetError, click.ClickException, OSError, TimeoutError):
        return [CompletionItem(name) for name in asyncio.run(asked())]
    return []


def clusters(typed: str) -> list[CompletionItem]:
    """Clusters of the config file whose names begin with what was typed."""
    with contextlib.suppress(HetError):
        config = read(config_path(os.environ), os.path.expanduser("~"))
        return [CompletionItem(name) for name in sorted(config.clusters) if name.startswith(typed)]
    return []


def install_hint(shell: str) -> str:
    """How a person makes a shell read that script."""
    if shell == "fish":
        return "hetctl completion fish > ~/.config/fish/completions/hetctl.fish"
    return f"echo 'eval \"$(hetctl completion {shell})\"' >> ~/.{shell}rc"


def tell_hint(shell: str) -> None:
    """Say to a person who sees the script how to use it."""
    if sys.stdout.isatty():
        click.echo(f"# to have it in every shell: {install_hint(shell)}", err=True)
