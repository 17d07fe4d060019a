"""hetctl's entry point; each of these modules adds its subcommands."""

import io
import sys

from hetrdzv.cli.hetctl import act, describe, get, history, logs, wait  # noqa: F401
from hetrdzv.cli.hetctl.options import cli


def main() -> None:
    """The entry point `hetctl`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal speaks UTF-8
    cli(prog_name="hetctl")
