"""What was asked of the optional parts of the agent: standbys, snapshots, notices of a cloud."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from hetagent.errors import UsageError
from hetagent.options.values import positive, size
from hetagent.snapshots.folder import EVERY_S
from hetagent.snapshots.on_disk import is_url, path_of

T = TypeVar("T")
U = TypeVar("U")

NONE, AUTO = "none", "auto"

SPOT = "spot"

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
    """What standbys import."""
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


def watches_spot(args: Namespace, environ: Mapping[str, str]) -> bool:
    """Whether `--watch spot` was given."""
    given = args.watch or environ.get("HET_WATCH", "")
    if given not in ("", SPOT):
        raise UsageError(
            f"{'--watch' if args.watch else 'HET_WATCH in the environment:'} {given}: give {SPOT}"
        )
    return bool(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions:
    """`--snapshot-dir`, `--snapshot-memory` and so on.

    Attributes:
        folder: where the node's folder is made; dir_given: it was given.
        memory: what all snapshots of the node may take (bytes); 0: there are none; None: half of what is free.
        every_s: how far apart they are at most (seconds).
        to: the directory that they are written to; None: they are not.
        to_every_s: how often (seconds).
        keep: how many are kept there.
    """

    folder: Path
    dir_given: bool
    memory: int | None
    every_s: int
    to: Path | None
    to_every_s: int
    keep: int


def snapshot_options(args: Namespace, environ: Mapping[str, str]) -> SnapshotOptions:
    """The flags, or their variables: `HET_SNAPSHOT_DIR` for `--snapshot-dir`."""

    def given(name: str) -> str | None:
        return getattr(args, f"snapshot_{name}") or environ.get(f"HET_SNAPSHOT_{name.upper()}") or None

    def read(name: str, reads: Callable[[str], T], default: U) -> T | U:
        text = given(name)
        try:
            return default if text is None else reads(text)
        except ValueError as error:
            flag = f"--snapshot-{name.replace('_', '-')}"
            where = flag if getattr(args, f"snapshot_{name}") else f"HET_SNAPSHOT_{name.upper()}"
            shown = "" if text is None or "@" in text else f" {text}"  # a password
            raise UsageError(f"{where}{shown}: {error}") from None

    options = SnapshotOptions(
        folder=Path(given("dir") or SHM).absolute(),
        dir_given=given("dir") is not None,
        memory=read("memory", size, None),
        every_s=read("every_s", positive, int(EVERY_S)),
        to=read("to", _directory, None),
        to_every_s=read("to_every_s", positive, TO_EVERY_S),
        keep=read("keep", positive, KEEP),
    )
    if options.to is None and (given("to_every_s") or given("keep")):
        raise UsageError(
            "--snapshot-to-every-s and --snapshot-keep: nothing is written without --snapshot-to DIR"
        )
    if options.to is not None and options.memory == 0:
        raise UsageError("--snapshot-to needs snapshots, and --snapshot-memory turns them off")
    return options


def _directory(text: str) -> Path:
    """A directory or URL."""
    if not is_url(text):
        return Path(text).absolute()
    if urlsplit(text).password is not None:
        raise ValueError(
            "no password in a URL, which others see in the list of processes: use the environment"
        )
    try:
        return path_of(text)
    except (ImportError, ValueError) as error:
        more = "pip install 'hetrdzv[urls]', and what reads these (s3fs, gcsfs, adlfs)"
        raise ValueError(f"{error}; {more}") from None
