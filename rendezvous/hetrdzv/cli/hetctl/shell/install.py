"""The subcommand completion: what a shell needs to complete hetctl's command lines."""

import click

from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.options import command
from hetrdzv.cli.hetctl.shell import completion as shells


@command("Print a script that completes command lines.")
@click.argument("shell", type=click.Choice(shells.SHELLS))
def completion(shell: str) -> None:
    """Print a script for SHELL that completes commands, flags, and the names of groups and nodes.

    bash, zsh: eval "$(hetctl completion bash)" in ~/.bashrc or ~/.zshrc
    """
    tables.write(shells.script(shell))
    shells.tell_hint(shell)
