"""hetctl's command line: the list of subcommands, error messages and exit statuses."""

import sys
from collections.abc import Sequence

import click

from hetrdzv import __version__
from hetrdzv.cli.hetctl import events, groups, nodes
from hetrdzv.cli.hetctl.calls import complain
from hetrdzv.cli.hetctl.options import takes_shared
from hetrdzv.protocol.errors import HetError

SUBCOMMANDS = (
    groups.create,
    groups.status,
    events.events,
    groups.restart,
    groups.cancel,
    nodes.drain,
    nodes.undrain,
    groups.delete,
)


@click.group(
    commands=SUBCOMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@takes_shared(hidden=False)
@click.version_option(__version__, prog_name="hetctl")
def cli() -> None:
    """Inspect the groups of a hetserver and act on them."""


def run(argv: Sequence[str]) -> int:
    """Run a command line; returns the exit status: 0, 1 after an error, 2 for a wrong command line."""
    try:
        status = cli.main(list(argv), prog_name="hetctl", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        see = f"; see {error.ctx.command_path} --help" if error.ctx is not None else ""
        complain(error.format_message().rstrip(".") + see)
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
