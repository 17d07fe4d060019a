"""hetctl: inspect groups and act on them. Start in main.py; each subcommand is in the module of its subject."""

from hetrdzv.cli.hetctl.main import main
from hetrdzv.cli.hetctl.options import cli

__all__ = ["cli", "main"]
