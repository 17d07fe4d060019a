"""Opens the store that a `--store` URL names, except one that servers share, which only the leader has."""

from pathlib import Path

from hetrdzv.storage.base import MemoryStore, StateStore
from hetrdzv.storage.sqlite import SqliteStore


def open_store(url: str) -> StateStore:
    """The store that a URL names; raises `ValueError` if it names none. Nothing is touched before its `load`."""
    if url == "memory":
        return MemoryStore()
    scheme, _, path = url.partition(":")
    if scheme != "sqlite" or path in ("", ":memory:"):
        raise ValueError(
            f"unknown store '{url}': use 'memory' (lost when the server ends), 'sqlite:PATH', "
            f"or 'etcd://HOST:PORT,HOST:PORT,HOST:PORT/PREFIX' for several servers"
        )
    try:
        return SqliteStore(Path(path).expanduser().resolve())
    except (RuntimeError, ValueError, OSError) as error:  # no such home, a null byte, a loop of links
        raise ValueError(f"store '{url}' is not a usable path: {error}") from error
