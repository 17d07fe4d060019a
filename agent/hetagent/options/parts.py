"""What was asked of the optional parts of the agent: standbys, snapshots, notices of a cloud."""

import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from hetagent.errors import UsageError
from hetagent.snapshots.folder import EVERY_S
from hetagent.snapshots.on_disk import is_url, path_of

NONE, AUTO = "none", "auto"

SPOT, REBALANCE = "spot", "rebalance"

SHM = "/dev/shm"
"""Where Linux has memory that looks like files."""

TO_EVERY_S, KEEP = 600, 3
"""How often snapshots are written to disk unless a person says so (seconds), and how many are kept there."""


@dataclass(frozen=True, slots=True)
class Preload:
    """`--preload`.

    Attributes:
        modules: what standbys import; empty: there are to be none.
        given: the flag's value; None: it was not given.
    """

    modules: Sequence[str]
    given: str | None


def preload(args: Namespace, environ: Mapping[str, str]) -> Preload:
    """What standbys import.

    Raises:
        UsageError: a name is none.
    """
    given: str | None = args.preload
    names = [name.strip() for name in (given or environ.get("HET_PRELOAD") or AUTO).split(",")]
    modules = names if names != [NONE] else []
    for name in modules:
        if not all(part.isidentifier() for part in name.split(".")):
            flag = "--preload" if given else "HET_PRELOAD"
            raise UsageError(
                f"{flag} takes names of modules with commas between them, {AUTO}, or {NONE}, not {name!r}"
            )
    return Preload(modules, given)


def watched(args: Namespace, environ: Mapping[str, str]) -> frozenset[str]:
    """What `--watch` looks for: `spot`, `rebalance`.

    Raises:
        UsageError: it names something else.
    """
    given: str = args.watch or environ.get("HET_WATCH", "")
    found = frozenset(filter(None, given.split(",")))
    if unknown := sorted(found - {SPOT, REBALANCE}):
        where = "--watch" if args.watch else "HET_WATCH in the environment:"
        raise UsageError(f"{where} {unknown[0]}: give {SPOT}, or {SPOT},{REBALANCE}")
    return found


class SnapshotOptions:
    """`--snapshot-dir`, `--snapshot-memory`, `--snapshot-every-s`, `--snapshot-to` and what belongs to that.

    Attributes:
        folder: where the node's folder is made.
        memory: what all snapshots of the node may take, as text; None: half of what is free.
        ports: how many it takes of `--port-range`.
        every_s: how far apart they are at most (seconds).
        to: the directory that they are written to; None: they are not.
        to_every_s: how often (seconds).
        keep: how many are kept there.

    Raises:
        UsageError: a value makes no sense.
    """

    def __init__(self, args: Namespace, environ: Mapping[str, str]) -> None:
        self._args, self._environ = args, environ
        self.folder = Path(self.given("dir") or SHM).absolute()
        self.memory = self.given("memory")
        self.ports = 0 if (self.memory or "").strip().lower() in ("off", "0") else 1
        self.every_s = self._number("every_s", int(EVERY_S), least=1, what="a number of seconds")
        to = self.given("to")
        self.to = None if not to else self._url(to) if is_url(to) else Path(to).absolute()
        self.to_every_s = self._number("to_every_s", TO_EVERY_S, least=1, what="a number of seconds")
        self.keep = self._number("keep", KEEP, least=1, what="a number")
        if self.to is None and (unused := next(filter(self.given, ("to_every_s", "keep")), None)):
            raise UsageError(f"{self.flag(unused)}: nothing is written without --snapshot-to DIR")

    def _url(self, text: str) -> Path:
        if urlsplit(text).password is not None:
            raise UsageError(
                f"{self.flag('to')}: no password in a URL, which others see in the list of processes: give it in the "
                "environment, or in the configuration of what reads such URLs"
            )
        try:
            return path_of(text)
        except (ImportError, ValueError) as error:
            more = "; pip install 'hetrdzv[urls]', and what reads these (s3fs, gcsfs, adlfs)"
            raise UsageError(f"{self.flag('to')} {text}: {error}{more}") from None

    def _number(self, name: str, default: int, *, least: int, what: str) -> int:
        text = self.given(name)
        if text is None:
            return default
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or int(text) < least:
            raise UsageError(f"{self.flag(name)} {text}: give {what}")
        return int(text)

    def given(self, what: str) -> str | None:
        """A flag's value, or its variable's."""
        value: str | None = getattr(self._args, f"snapshot_{what}")
        return value or self._environ.get(f"HET_SNAPSHOT_{what.upper()}") or None

    def flag(self, what: str) -> str:
        """By which name something was given."""
        given = getattr(self._args, f"snapshot_{what}")
        return f"--snapshot-{what.replace('_', '-')}" if given else f"HET_SNAPSHOT_{what.upper()}"
