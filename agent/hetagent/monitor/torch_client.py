"""Asks a worker's own server over its UNIX socket, without waiting for the answer."""

import re
import socket
import time

MAX_ANSWER_BYTES = 16 << 20
"""The longest answer that is read (bytes); torch's recorder of 2,000 operations sends 1 MB."""


class QueryError(Exception):
    """There is no server, or it does not say what was asked for."""


class TorchServerQuery:
    """One question to a handler with its parameters (empty: which handlers there are), on a connection of its own.

    `at` is when it was asked (monotonic seconds). An OSError: nobody listens there.
    """

    def __init__(self, path: str, what: str) -> None:
        self.at = time.monotonic()
        self._received = bytearray()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.connect(path)
            method = "POST" if what else "GET"
            self._socket.sendall(
                f"{method} /handler/{what} HTTP/1.1\r\nHost: worker\r\nContent-Length: 0\r\n"
                "Connection: close\r\n\r\n".encode()
            )
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Readable when something of the answer has come."""
        return self._socket.fileno()

    def read_answer(self) -> bytes | None:
        """The body of the answer; None: not all of it has come. A QueryError: there will be none."""
        try:
            while data := self._socket.recv(1 << 18):
                self._received += data
                if len(self._received) > MAX_ANSWER_BYTES:
                    raise QueryError("its answer is too long")
        except BlockingIOError:
            return None
        except OSError as error:
            raise QueryError(str(error)) from None
        head, blank_line, body = bytes(self._received).partition(b"\r\n\r\n")
        if not blank_line or not re.match(rb"HTTP/1\.\d 200 ", head):
            raise QueryError(head.partition(b"\r\n")[0].decode(errors="replace") or "it hung up")
        length = re.search(rb"\r\nContent-Length: *(\d+)", head, re.IGNORECASE)
        if length and len(body) < int(length[1]):
            raise QueryError("its answer is cut short")
        return body

    def close(self) -> None:
        """Give up waiting."""
        self._socket.close()
