"""hetctl: inspect groups and act on them. Start in main.py; each subcommand is in the module of its subject."""

from hetrdzv.cli.hetctl.main import cli, main

__all__ = ["cli", "main"]
