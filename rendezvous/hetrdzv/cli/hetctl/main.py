"""hetctl's command line: the list of subcommands, error messages and exit statuses."""

import sys
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import click

from hetrdzv import __version__
from hetrdzv.cli.hetctl import dashboard, events, groups, nodes, plan, snapshots, stacks
from hetrdzv.cli.hetctl.calls import complain
from hetrdzv.cli.hetctl.look import describe, get, history, logs, top, wait
from hetrdzv.cli.hetctl.options import takes_shared
from hetrdzv.cli.hetctl.shell import install
from hetrdzv.cli.usage import wrong
from hetrdzv.protocol.errors import HetError

SUBCOMMANDS: Mapping[str, Sequence[click.Command]] = {
    "look": (
        get.get,
        describe.describe,
        describe.why,
        top.top,
        events.events,
        logs.logs,
        stacks.stacks,
        history.history,
        snapshots.snapshots,
        plan.plan,
    ),
    "act": (groups.restart, groups.cancel, nodes.drain, nodes.undrain, wait.wait),
    "set up": (
        dashboard.dashboard,
        groups.create,
        groups.delete,
        install.completion,
    ),
}
"""By what a person wants to do."""

DESTRUCTIVE = frozenset({"cancel", "delete", "drain", "restart"})
"""Subcommands that stop something or lose something: suggested only for an obvious slip, and never first."""

FOREIGN = frozenset({"kill", "remove", "rm", "stop"})
"""What people type who know other tools: no slip, though it may look like one (`stop`, `top`)."""

CLOSE, OBVIOUS = 0.6, 0.8
"""How alike two words must be for a suggestion, and for a destructive one (`SequenceMatcher.ratio`)."""

AS_CLOSE = 0.1
"""What is suggested is at most this much less alike than the closest (`SequenceMatcher.ratio`)."""


class _InSections(click.Group):
    """A group that lists its commands by what a person wants to do."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list."""
        for title, commands in SUBCOMMANDS.items():
            with formatter.section(title.capitalize()):
                formatter.write_dl(
                    [(f"{command.name:10}", command.get_short_help_str(66)) for command in commands]
                )


@click.group(
    cls=_InSections,
    commands=[command for commands in SUBCOMMANDS.values() for command in commands],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@takes_shared(hidden=False)
@click.version_option(__version__, prog_name="hetctl")
def cli() -> None:
    """Inspect the groups of a hetserver and act on them."""


_NO_ARGS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
_NO_SUCH_COMMAND: Any = getattr(click, "NoSuchCommand", ())
"""What click has since 8.2 and 8.4; before, help is no error, and click words the other one itself."""


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
    except _NO_SUCH_COMMAND as error:
        known = f"; the commands are {', '.join(cli.commands)}"
        complain(f"there is no command '{error.command_name}'{meant(error.command_name) or known}")
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


def meant(word: str) -> str:
    """`: did you mean 'cancel'?` for a word that is nearly a subcommand, otherwise nothing."""
    if word in FOREIGN:
        return ""
    alike = {name: SequenceMatcher(None, word, name).ratio() for name in cli.commands}
    least = max(alike.values()) - AS_CLOSE
    close = [n for n in alike if alike[n] >= max(least, OBVIOUS if n in DESTRUCTIVE else CLOSE)]
    close.sort(key=lambda name: (name in DESTRUCTIVE, -alike[name]))
    return f": did you mean {' or '.join(map(repr, close))}?" if close else ""


def main() -> None:
    """The entry point `hetctl`."""
    sys.exit(run(sys.argv[1:]))
