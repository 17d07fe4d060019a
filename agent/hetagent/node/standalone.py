"""A hetserver of the agent's own, for a job on one node (`--standalone`)."""

import contextlib
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator


def make_group_id() -> str:
    """The id of a group that no other job has, as torchrun makes one."""
    return f"standalone-{uuid.uuid4().hex[:12]}"


class ChildServer:
    """A hetserver that is this process's child."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url = url
        self._process = process

    def on_exit(self, gone: Callable[[str], None]) -> None:
        """Call `gone`, in a thread of its own, when the server ends, and say how it ended."""

        def wait() -> None:
            gone(f"the server that --standalone started ended with status {self._process.wait()}")

        threading.Thread(target=wait, name="hetagent-own-server", daemon=True).start()


@contextlib.contextmanager
def run_child_server() -> Iterator[ChildServer]:
    """A child hetserver on a free port, with its state in memory; it ends with the block, or with this process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "hetrdzv.cli.hetserver", "--fd", str(listener.fileno())),
                *("--store", "memory", "--log-level", "error", "--stop-at-eof"),
            ],
            stdin=subprocess.PIPE,
            pass_fds=(listener.fileno(),),
            start_new_session=True,  # Ctrl-C must reach only the agent, which needs its server until the end
        )
    try:
        yield ChildServer(url, server)
    finally:
        assert server.stdin is not None
        server.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(5)
        server.kill()
        server.wait()
