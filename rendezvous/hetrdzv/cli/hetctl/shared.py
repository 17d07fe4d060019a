"""The options that all subcommands share, as the running command was given them."""

from dataclasses import dataclass
from pathlib import Path

import click


@dataclass(slots=True)
class Shared:
    """The options that all subcommands share.

    Attributes:
        server: of `--server` or `HET_SERVER`; empty: neither was given.
        output: of `--output`; empty: not given.
    """

    server: tuple[str, ...] = ()
    token_file: Path | None = None
    ca_cert: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    as_json: bool = False
    output: str = ""


def shared() -> Shared:
    """The shared options of the running command."""
    return shared_of(click.get_current_context())


def shared_of(context: click.Context) -> Shared:
    """The shared options of a command."""
    options: Shared = context.ensure_object(Shared)
    return options
