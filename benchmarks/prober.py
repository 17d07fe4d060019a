"""Asks /healthz all the time; prints when, how long that took and the server's CPU time. Run by hold.py: PORT PID."""

import contextlib
import os
import socket
import sys
import time

PAUSE_S = 0.001


def used_s() -> float:
    """CPU time of the server's main thread (seconds)."""
    with open(f"/proc/{sys.argv[2]}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) / 1e9


def main() -> None:
    with contextlib.suppress(OSError):
        os.nice(-10)
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            asked_at, cpu_s = time.monotonic(), used_s()
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            if not connection.recv(65_536):
                return
            print(asked_at, time.monotonic() - asked_at, used_s() - cpu_s, flush=True)
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
