"""The folder with a node's snapshots: made, locked, inherited from an agent that died, and removed."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PREFIX = "hets_"

OLD_S = 3600.0
"""Age at which an abandoned folder is swept (seconds)."""

LEAVING = "leaving"
"""Exists while an agent that leaves still serves its snapshots, or writes one to disk."""

LOCK = "lock"

WAIT_S, LEAVES_S = 30.0, 600.0
"""How long a successor waits for its predecessor, and for one that is leaving (seconds)."""

LOOK_S = 0.2


class NodeFolder:
    """The folder of one node of a group, which no other agent uses while this process lives."""

    def __init__(
        self,
        parent: Path,
        group: str,
        node_id: str,
        servers: Sequence[str],
        log: Callable[[str], None] = lambda text: None,
        *,
        wait_s: float | None = None,
    ) -> None:
        key = "\0".join([str(os.getuid()), group, node_id, *sorted(set(servers))])
        self.path = parent / (PREFIX + hashlib.sha256(key.encode()).hexdigest()[:16])
        self._lock = -1
        began, logged = time.monotonic(), False
        while self._lock < 0:
            self.path.mkdir(mode=0o700, exist_ok=True)
            try:
                self._lock = _locked(self.path)
            except FileNotFoundError:  # its last owner has removed it just now
                continue
            except BlockingIOError as error:
                limit_s = LEAVES_S if (self.path / LEAVING).exists() else WAIT_S
                limit_s = limit_s if wait_s is None else wait_s
                if time.monotonic() >= began + limit_s:
                    raise
                if not logged:
                    log(f"waiting up to {limit_s:.0f} s for the last agent of this node to end: {error}")
                    logged = True
                time.sleep(LOOK_S)
        (self.path / LEAVING).unlink(missing_ok=True)

    def leave(self) -> None:
        """Mark this agent as leaving: its successor waits longer."""
        with contextlib.suppress(OSError):
            (self.path / LEAVING).touch()

    def close(self, *, remove: bool) -> None:
        """Unlock it, or remove it. Harmless if called again."""
        if self._lock >= 0:
            if remove:
                _remove(self.path)
            os.close(self._lock)
            self._lock = -1


def sweep(parent: Path) -> None:
    """Remove abandoned folders of this user."""
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            changed_at = max(os.lstat(each).st_mtime for each in (path, *path.glob("*"), *path.glob("*/*")))
            if time.time() - changed_at >= OLD_S:
                lock = _locked(path)
                _remove(path)
                os.close(lock)


def _locked(path: Path) -> int:
    """Lock a folder; returns the descriptor that holds the lock."""
    stats = os.lstat(path)
    if not stat.S_ISDIR(stats.st_mode) or stats.st_uid != os.getuid() or stats.st_mode & 0o077:
        raise PermissionError(f"{path} is not a folder of this user alone")
    fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(fd), os.stat(path / LOCK)):
            raise FileNotFoundError(path)
        os.pwrite(fd, b"%-20d" % os.getpid(), 0)
    except BlockingIOError:
        pid = os.pread(fd, 20, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise BlockingIOError(f"another agent uses {path} (pid {pid})") from None
    except OSError:
        os.close(fd)
        raise
    return fd


def _remove(path: Path) -> None:
    """Remove a folder; its name is free at once."""
    gone = path.with_name(f"{path.name}.{os.getpid()}")
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)
