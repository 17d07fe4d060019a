"""For training scripts: tells the agent how far they have come. Standard library only; does nothing without an agent.

    from hetagent import progress

    for step, batch in enumerate(loader):
        train(batch)
        progress.progress(step)          # takes less than a microsecond

    with progress.long(600):             # nothing need change for up to ten minutes
        save_checkpoint()

    if agreed(progress.stop_requested()):  # by all ranks, which see it at different moments: docs/notice.md
        save_checkpoint()
        progress.ready_to_stop()

Programs in other languages write the number of their step, as text, into the file that HET_PROGRESS_FILE names. Their
round is about to end once the file exists that HET_NOTICE_FILE names; when they may be stopped, they add a line to the
file beside it, with .ready at the end of its name. An empty file there with .asked says that they look for it at all.
"""

import contextlib
import functools
import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

FILE = "HET_PROGRESS_FILE"
"""Variable of a worker: the file for its progress. What this module writes is in another one beside it."""

NOTICE_FILE = "HET_NOTICE_FILE"
"""Variable of a worker: the file that appears when the round is about to end."""

READY = ".ready"
"""What the name of the file beside it ends with to which each worker that may be stopped adds a line."""

ASKED = ".asked"
"""What the name of the file beside it ends with that is there once a worker has looked for a notice."""

SUFFIX = ".map"
"""What the name of that other file ends with, and the process's pid (of a node's ranks none ends another's pause): who
writes a text truncates, and a map would not survive that."""

LAYOUT = struct.Struct("=qddd")
"""The step plus 1 (0: none yet), until when nothing need change, when a step was first said, and when last
(CLOCK_MONOTONIC, seconds)."""

_STEP, _TIME = struct.Struct("=q"), struct.Struct("=d")
_UNTIL_AT, _FIRST_AT, _LAST_AT = 8, 16, 24

_pack, _pack_time = _STEP.pack_into, _TIME.pack_into
_followed = [0]  # what `follow` has written
_pauses: dict[object, float] = {}  # until when (CLOCK_MONOTONIC, seconds), by the block that announced it


def progress(step: int) -> None:
    """Say that the script has come to a step. Any change of the number counts as progress.

    Args:
        step: at least 0.
    """
    try:
        memory, now = _open_progress_file(), time.monotonic()
        if _TIME.unpack_from(memory, _FIRST_AT) == (0.0,):
            _pack_time(memory, _FIRST_AT, now)
        _pack(memory, 0, step + 1)
        _pack_time(memory, _LAST_AT, now)
    except Exception:
        with contextlib.suppress(Exception):  # it must not be what ends a training
            _pack(_open_progress_file(), 0, int(step) + 1)


def follow(step: int) -> None:
    """As `progress`, for what knows the steps of a script that may say them itself: then that counts."""
    with contextlib.suppress(Exception):
        (known,) = _STEP.unpack_from(_open_progress_file())
        if known == _followed[0]:
            progress(step)
            _followed[0] = step + 1


@contextlib.contextmanager
def long(seconds: float) -> Iterator[None]:
    """Say that nothing need change for some time, so that the wait for it is no hang; ends with the block.

    Of several blocks, nested or in several threads, the one that may take longest counts.

    Args:
        seconds: how long it may take at most, from now on.
    """
    block = object()
    try:
        with contextlib.suppress(Exception):
            _pauses[block] = time.monotonic() + seconds
            _announce_pause()
        yield
    finally:
        _pauses.pop(block, None)
        with contextlib.suppress(Exception):
            _announce_pause()


def _announce_pause() -> None:
    _pack_time(_open_progress_file(), _UNTIL_AT, max([0.0, *_pauses.values()]))


class Notice(NamedTuple):
    """The round is about to end.

    Attributes:
        kind: what will end it: `joined`, `drained`, `restarted`, `cancelled` or `left`; empty: nobody knows.
        why: one sentence for people.
        left_s: for how much longer this worker may save at most (seconds).
    """

    kind: str
    why: str
    left_s: float


def stop_requested() -> bool:
    """Whether the round is about to end, so that it is time to save; takes some microseconds.

    Workers see it at slightly different moments, so they have to agree before one of them leaves the others alone in a
    collective: all-reduce the answer.
    """
    path = os.environ.get(NOTICE_FILE)
    if not path:
        return False
    _register_for_notice(path)
    return os.path.exists(path)


@functools.cache
def _register_for_notice(path: str) -> None:
    """Show the agent that this worker saves, so that it is waited for."""
    with contextlib.suppress(Exception):
        open(path + ASKED, "ab").close()


def notice() -> Notice | None:
    """Why the round is about to end, and for how much longer it goes on; None: it is not about to."""
    try:
        with open(os.environ.get(NOTICE_FILE) or "", "rb") as file:
            content = json.load(file)
        left_s = max(0.0, float(content["until"]) - time.monotonic())
        return Notice(str(content["kind"]), str(content["why"]), left_s)
    except OSError:
        return None
    except Exception:  # there is one, whatever it says
        return Notice("", "", 0.0)


def ready_to_stop() -> None:
    """Say that this worker has saved what it has done, and may be stopped; does nothing without a notice.

    What it does from now on may be lost. It may also exit with status 0, which then is no success. A script with
    snapshots (hetagent.snapshots) saves its last step here: one that is over would not be asked for it.
    """
    with contextlib.suppress(Exception):
        path = os.environ[NOTICE_FILE]
        if os.path.exists(path):
            if snapshots := sys.modules.get("hetagent.snapshots"):
                snapshots.save_now()
            with open(path + READY, "ab", buffering=0) as file:
                file.write(b"%d\n" % os.getpid())


@functools.cache
def _open_progress_file() -> mmap.mmap | bytearray:
    """What is written to, opened at the first call: a process may import this module before its round is known."""
    if path := os.environ.get(FILE):
        path += f"{SUFFIX}{os.getpid()}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                # A write to a map without a block on the disk is SIGBUS when the disk is full.
                os.posix_fallocate(descriptor, 0, LAYOUT.size)
                return mmap.mmap(descriptor, LAYOUT.size)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            with contextlib.suppress(Exception):
                print(
                    f"hetagent.progress: cannot report progress to the agent: {why}: {path}; "
                    "the agent's TMPDIR has to be writable and have room",
                    file=sys.stderr,
                    flush=True,
                )
    return bytearray(LAYOUT.size)
