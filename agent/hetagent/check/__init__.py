"""`hetagent --check`: whether this machine is fit to join, without joining."""

from argparse import Namespace
from collections.abc import Mapping
from typing import ClassVar

from hetagent.feature import Feature, Flags
from hetagent.options.model import Options, UsageError
from hetrdzv.auth.tls import ClientTls


class CheckOnly(Feature):
    """`--check`: a look at this machine instead of an agent."""

    flags: ClassVar[Flags] = {
        "--check": {
            "action": "store_true",
            "help": "Join nothing: check devices, versions, servers, the address to offer and the way to the other "
            "nodes.",
        },
    }

    def __init__(self, args: Namespace, environ: Mapping[str, str]) -> None:
        self._is_wanted: bool = args.check
        if args.check and args.standalone:
            raise UsageError(
                "--check looks at servers and other nodes, and --standalone has none: leave one of them out"
            )

    def instead(self, options: Options, token: str | None, tls: ClientTls) -> int | None:
        """Print a table; joins nothing."""
        if not self._is_wanted:
            return None
        from hetagent.check.run import run

        return run(options, token, tls)
