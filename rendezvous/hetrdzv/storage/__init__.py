"""Opens the store that a `--store` URL names, except one that servers share, which only the leader has."""

from collections.abc import Sequence
from pathlib import Path

from hetrdzv.storage.base import StateStore
from hetrdzv.storage.memory import MemoryStore
from hetrdzv.storage.sqlite import SqliteStore

__all__ = ["open_store"]

_KNOWN = ("'memory' (lost when the server ends)", "'sqlite:PATH'")


def open_store(url: str, others: Sequence[str] = ()) -> StateStore:
    """The store that a URL names. Nothing is touched before its `load`.

    Args:
        url: `memory` or `sqlite:PATH`; `~` is expanded.
        others: what else could have been named, for the error.

    Raises:
        ValueError: the URL names no store.
    """
    scheme, _, rest = url.partition(":")
    *known, last = (*_KNOWN, *others)
    use = f"use {', '.join(known)}{',' * (len(known) > 1)} or {last}"
    match scheme, rest:
        case "memory", "" if url == "memory":
            return MemoryStore()
        case "sqlite", ":memory:":
            raise ValueError(f"store '{url}' names no file: {use}")
        case "sqlite", path if path:
            return SqliteStore(_absolute(url, path))
        case _:
            raise ValueError(f"unknown store '{url}': {use}")


def _absolute(url: str, path: str) -> Path:
    try:
        return Path(path).expanduser().resolve()
    except (RuntimeError, ValueError, OSError) as error:  # no such home, a null byte, a loop of links
        raise ValueError(f"store '{url}' is not a usable path: {error}") from error
