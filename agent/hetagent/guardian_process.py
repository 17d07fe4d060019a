"""The process that stops the workers of a dead agent: changes when what must happen after that death does.

`guardian.Guardian` starts it as `python -I -S guardian_process.py`: no site-packages are looked up, so it
starts in some 20 ms, and stays small until there are workers. It reads lines from stdin: first a JSON object,
later `sessions PID ...` (the workers' sessions from now on) and `done` (an orderly end); to the first it
answers `ready`. The end of the pipe or of the agent without a `done` means that the workers are nobody's.
Arguments and environment are public, so nothing is told by them.
"""

import contextlib
import json
import os
import select
import signal
import sys
import threading
from typing import Any

GOODBYE_TIMEOUT_S = 8.0
"""How long the servers may take to answer the goodbye (seconds)."""

GOODBYE_LIMIT_S = 10
"""Whole seconds after which the guardian ends anyway: imports and resolvers know no time-out."""

IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""What Slurm, or whoever signals all processes of a job, means for the agent: it leaves in good order."""

REASON = "its agent died; its guardian stopped the workers"


class AgentPipe:
    """The lines that an agent sends, until it dies.

    The end of the pipe alone does not show that: a worker that was forked without exec holds it open.

    Args:
        fd: where the lines come from.
        agent_pid: the agent, this process's parent.
    """

    def __init__(self, fd: int, agent_pid: int) -> None:
        self._fd = fd
        self._buffer = b""
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        # It fails for an agent that is dead already; then the pipe has ended, too.
        with contextlib.suppress(OSError):
            self._poll.register(os.pidfd_open(agent_pid), select.POLLIN)

    def readline(self) -> str | None:
        """The next line without its end; None when the agent is gone."""
        while b"\n" not in self._buffer:
            ready = {fd for fd, _ in self._poll.poll()}
            # What it said before it died comes first.
            chunk = os.read(self._fd, 65_536) if self._fd in ready else b""
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()


def main() -> int:
    """Watch over one agent; returns the exit status."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    pipe = AgentPipe(sys.stdin.fileno(), os.getppid())
    first = pipe.readline()
    if first is None:
        return 1  # the agent died before it said whose workers to stop: it had none
    message = json.loads(first)
    sys.path[:] = message["sys_path"]
    # Now, not in need: its file may be out of reach by then.
    from hetagent import processes

    print("ready", flush=True)
    sessions: list[int] = []
    importing: threading.Thread | None = None
    while (line := pipe.readline()) is not None:
        word, *rest = line.split()
        if word == "done":
            return 0
        if word == "sessions":
            sessions = [int(pid) for pid in rest]
            if importing is None:
                # For the goodbye: in need it would take 0.3 to 1 s, for which all other nodes would wait.
                importing = threading.Thread(target=_import_client, daemon=True)
                importing.start()
    stubborn = processes.kill_tree_of(message["incarnation"], sessions)
    if stubborn:
        pids = ", ".join(map(str, stubborn))
        _say(
            f"node {message['node_id']!r}: processes {pids} do not die of SIGKILL; "
            "they hang in the kernel (a GPU or a file server): check the node before it is used again"
        )
    signal.alarm(GOODBYE_LIMIT_S)
    goodbye(message)
    return 0


def goodbye(message: dict[str, Any]) -> None:
    """Tell the server that the node left; an error is only printed, for the server finds out without us.

    Args:
        message: `servers`, `token`, `token_file`, `tls`, `group`, `node_id` and `incarnation` of the agent.
    """
    try:
        import asyncio

        asyncio.run(asyncio.wait_for(_leave(message), GOODBYE_TIMEOUT_S))
    except Exception as error:
        _say(
            f"could not tell {', '.join(message['servers'])} that node {message['node_id']!r} left group "
            f"{message['group']!r} ({type(error).__name__}: {error}); it finds out when the node's lease ends"
        )


def _import_client() -> None:
    with contextlib.suppress(Exception):  # said at the goodbye, if that comes
        import hetrdzv.client  # noqa: F401


async def _leave(message: dict[str, Any]) -> None:
    from pathlib import Path

    from hetrdzv.access import token_again
    from hetrdzv.client import Client
    from hetrdzv.tls import ClientTls

    tls = ClientTls(**{name: Path(path) if path else None for name, path in message["tls"].items()})
    token_file = Path(message["token_file"]) if message["token_file"] else None

    async with Client(
        message["servers"], token=message["token"], renew_token=lambda: token_again(token_file), tls=tls
    ) as client:
        await client.leave(
            message["group"], message["node_id"], incarnation=message["incarnation"], reason=REASON
        )


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal went with the agent
        print(f"hetagent guardian: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
