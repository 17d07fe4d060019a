"""hetctl's command line: the list of subcommands."""

import io
import sys

import click

from hetrdzv import __version__
from hetrdzv.cli.hetctl import act, describe, get, history, logs, wait
from hetrdzv.cli.hetctl.options import shared_options

COMMANDS = (
    get.get,
    describe.describe,
    history.events,
    history.history,
    logs.logs,
    logs.stacks,
    wait.wait,
    act.restart,
    act.cancel,
    act.drain,
    act.undrain,
    act.create,
    act.delete,
    act.dashboard,
)


@click.group(
    "hetctl",
    commands=COMMANDS,
    params=shared_options(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(__version__, prog_name="hetctl")
def cli() -> None:
    """Inspect the groups of a hetserver and act on them."""


def main() -> None:
    """The entry point `hetctl`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal speaks UTF-8
    cli(prog_name="hetctl")
