"""A call in a thread of its own, whose end can be polled for next to other file descriptors."""

import os
import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")

Call = Callable[[threading.Event], T]
"""Something to do in a thread; gets an event that is set once nobody waits for it any more."""


class Background(Generic[T]):
    """Makes a call in a thread, since a store does not answer while its master hangs.

    Args:
        call: what to call.
        linger_s: how long to wait at the end of the `with` block for the thread to let go of what it uses
            (seconds); None: until it has.
    """

    def __init__(self, call: Call[T], linger_s: float | None) -> None:
        self._call = call
        self._linger_s = linger_s
        self._abandoned = threading.Event()
        self._answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        self._read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="hetrdzv-store", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abandoned.set()
        self._thread.join(self._linger_s)
        os.close(self._read_fd)

    def _run(self) -> None:
        try:
            self._answers.put((self._call(self._abandoned), None))
        except BaseException as error:
            # its traceback refers to this object, and so would keep what the call used alive
            self._answers.put((None, error.with_traceback(None)))
        os.close(self._write_fd)

    def fileno(self) -> int:
        """A descriptor that becomes readable when the call has ended."""
        return self._read_fd

    @property
    def done(self) -> bool:
        """Whether the call has ended."""
        return not self._answers.empty()

    def result(self) -> T:
        """What the call returned, or raises what it raised; once, after its end."""
        result, error = self._answers.get()
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback refers to this frame
        return result  # type: ignore[return-value]
