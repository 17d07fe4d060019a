"""The folder with a node's snapshots: made, locked, taken over from an agent that died, and removed."""

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
"""How the names of such folders begin."""

OLD_S, EMPTY_S, UNSAVED_S = 3600.0, 60.0, 86_400.0
"""For how long nothing has been written to a folder that is swept, to one that never held a snapshot, and to one with
what should be on disk (seconds)."""

UNSAVED = "unsaved.json"
"""This file says which snapshot should be on disk and is not: the next agent writes it."""

LOCK, SLOTS = "lock", "slots.json"

LEAVING = "leaving"
"""This file is there while an agent that leaves serves yet what the node holds, or writes it to disk."""

WAIT_S, LEAVES_S = 30.0, 600.0
"""How long the next agent of the node waits for the one before, and for one that leaves (seconds)."""

LOOK_S = 0.2
"""How often it looks (seconds)."""


class Folder:
    """The folder of one node of a group, which no other agent uses as long as this process lives.

    What an earlier agent of the same node has left in it is still there. One that lives yet is waited for: the server
    lets only one agent of a node take part, so it is about to end.

    Args:
        parent: where it is.
        group, node_id: whose it is.
        servers: URLs of the servers that the group is on.
        tell: shows one line to the person at the terminal.
        wait_s: how long to wait for another agent that uses it (seconds); None: see `WAIT_S` and `LEAVES_S`.

    Attributes:
        path: its path.

    Raises:
        OSError: it cannot be made, is somebody else's, or another agent uses it.
    """

    def __init__(
        self,
        parent: Path,
        group: str,
        node_id: str,
        servers: Sequence[str],
        tell: Callable[[str], None] = lambda text: None,
        *,
        wait_s: float | None = None,
    ) -> None:
        key = "\0".join([str(os.getuid()), group, node_id, *sorted(set(servers))])
        self.path = parent / (PREFIX + hashlib.sha256(key.encode()).hexdigest()[:16])
        began = time.monotonic()
        said = False
        while True:
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
            try:
                self._lock = _locked(self.path)
                (self.path / LEAVING).unlink(missing_ok=True)
                return
            except FileNotFoundError:  # its last owner has removed it just now
                continue
            except BlockingIOError as error:
                most_s = LEAVES_S if (self.path / LEAVING).exists() else WAIT_S
                most_s = most_s if wait_s is None else wait_s
                if time.monotonic() >= began + most_s:
                    raise
                if not said:
                    tell(
                        f"waiting until the last agent of this node has ended, {most_s:.0f} s at most: {error}"
                    )
                    said = True
            time.sleep(LOOK_S)

    def leave(self) -> None:
        """This agent leaves, but not at once; the next one of the node waits for it."""
        (self.path / LEAVING).touch()

    def close(self, *, remove: bool) -> None:
        """Let the next agent have it, or remove it with all that is in it."""
        if self._lock < 0:
            return
        if remove:
            _remove(self.path)
        os.close(self._lock)
        self._lock = -1


def sweep(parent: Path) -> None:
    """Remove the folders that agents of this user have left and nobody has come back for."""
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            old_s = UNSAVED_S if (path / UNSAVED).exists() else OLD_S if (path / SLOTS).exists() else EMPTY_S
            if time.time() - _changed_at(path) < old_s:
                continue
            lock = _locked(path)
            _remove(path)
            os.close(lock)


def _locked(path: Path) -> int:
    """Lock a folder; returns the descriptor that holds the lock.

    Raises:
        FileNotFoundError: it is gone.
        OSError: it is somebody else's, or locked.
    """
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
    """Remove a folder at once for whoever looks for it by its name."""
    gone = path.with_name(f"{path.name}.{os.getpid()}")
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _changed_at(path: Path) -> float:
    """When something in a folder was written last (wall clock, seconds)."""
    return max(os.lstat(each).st_mtime for each in (path, *path.glob("*"), *path.glob("*/*")))
