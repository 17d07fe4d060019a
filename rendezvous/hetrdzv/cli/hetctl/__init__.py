"""hetctl: inspect groups and act on them. Each of these modules adds the subcommands of its subject."""

import io
import sys

from hetrdzv.cli.hetctl import actions, describe, history, logs, wait
from hetrdzv.cli.hetctl.options import hetctl_group

__all__ = ["actions", "describe", "hetctl_group", "history", "logs", "main", "wait"]


def main() -> None:
    """The entry point `hetctl`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal speaks UTF-8
    try:
        hetctl_group(prog_name="hetctl")
    except OSError as error:  # a full disk
        sys.exit(f"Error: {error}")
