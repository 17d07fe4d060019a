"""hetctl's command line: the list of subcommands, error messages and exit statuses."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from hetrdzv import __version__
from hetrdzv.cli.hetctl import act, describe, get, history, logs, wait
from hetrdzv.cli.hetctl.calls import complain
from hetrdzv.cli.hetctl.options import takes_shared
from hetrdzv.cli.usage import wrong
from hetrdzv.protocol.errors import HetError

COMMANDS: Sequence[click.Command] = (
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
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@takes_shared
@click.version_option(__version__, prog_name="hetctl")
def cli() -> None:
    """Inspect the groups of a hetserver and act on them."""


_NO_ARGS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""What click has since 8.2; before, help is no error."""


def run(argv: Sequence[str]) -> int:
    """Run a command line; returns the exit status: 0, 1 after an error, 2 for a wrong command line.

    A subcommand may have others of its own.
    """
    try:
        status = cli.main(list(argv), prog_name="hetctl", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except _NO_ARGS as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        complain(wrong(error))
        return 2
    except click.Abort:
        return 130
    except click.ClickException as error:
        complain(error.format_message())
    except HetError as error:
        complain(str(error))
    except OSError as error:
        complain(f"cannot write the output: {error.strerror or error}")
    return 1


def main() -> None:
    """The entry point `hetctl`."""
    sys.exit(run(sys.argv[1:]))
