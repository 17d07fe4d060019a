"""A file system that never answers: who looks into it hangs in the kernel (state D), and SIGKILL does not end it.

As with a file server that is gone, or a driver that is wedged. Once the kernel has handed a request of a FUSE file
system to its server, whoever asked waits for the answer, whatever signal comes, until the connection is closed.
"""

import ctypes
import os
import struct
import threading
from pathlib import Path
from typing import Self

import pytest

_HEADER = struct.Struct("<IIQQIIII")  # of a request: length, operation, its number, ...
_INIT = 26
_FORCE, _DETACH = 1, 2


class DeadFiles:
    """A mounted file system whose server reads requests and answers none.

    Args:
        folder: where to mount it.

    Attributes:
        asked: set once somebody has asked it for something.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked = threading.Event()
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __enter__(self) -> Self:
        if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
            pytest.skip("needs root and /dev/fuse")
        self.folder.mkdir(exist_ok=True)
        try:
            self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            pytest.skip(f"/dev/fuse: {error}")
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0".encode()
        if self._libc.mount(b"dead", bytes(self.folder), b"fuse", 0, options) != 0:
            os.close(self._fd)
            pytest.skip(f"mount: {os.strerror(ctypes.get_errno())}")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for flag in (_FORCE, _DETACH):  # the first ends the connection, and whoever waits
            self._libc.umount2(bytes(self.folder), flag)
        os.close(self._fd)
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._fd, 1 << 17)
            except OSError:
                return
            _, operation, number, *_ = _HEADER.unpack_from(request)
            if operation == _INIT:
                # version 7.31, and of everything else as little as there is
                answer = struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 1, 1, 4096, 1, 1, 0, 0)
                os.write(self._fd, struct.pack("<IiQ", 16 + len(answer), 0, number) + answer)
            else:
                self.asked.set()
