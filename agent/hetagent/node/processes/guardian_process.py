"""The guardian's program: ends the workers of an agent that died.

`guardian.Guardian` starts it as `python -I -S guardian_process.py`. Without site-packages it starts in some 20 ms,
and it stays small until there are workers. It reads lines from stdin: first a JSON object, which it answers with
`ready`, later `sessions PID ...` (the workers' sessions from now on), `pipes FOLDER` (where workers listen that save
their state when asked) and `done` (an orderly end). If the pipe or the agent ends without a `done`, the workers belong
to nobody. Nothing is passed by arguments or environment, since these are public.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import Any

GOODBYE_TIMEOUT_S = 8.0
"""How long the servers may take to answer the goodbye (seconds)."""

SAVE_S = 5.0
"""How long workers have to save their state before they are killed (seconds)."""

SAVE_CHECK_S = 0.01
"""How often to see whether they have (seconds)."""

PARENT_CHECK_S = 1.0
"""How often to check for the agent's death on kernels without pidfds (seconds)."""

GOODBYE_PAUSE_S = 0.25
"""Pause before they are all asked again, since one may be taking over from another (seconds)."""

GOODBYE_LIMIT_S = 15
"""Whole seconds after which the guardian ends anyway: imports and resolvers have no time-outs."""

REHEARSE_AFTER_S = 5.0
"""How long after the first workers the goodbye is rehearsed (seconds): its imports cost half a second of CPU, which
workers that start need more."""

IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that Slurm, or whoever signals all processes of a job, means for the agent, which then leaves properly."""

REASON = "its agent died, and its workers were stopped"


class AgentPipe:
    """The lines that an agent sends, until it dies.

    The end of the pipe alone does not show its death: a worker that was forked without exec holds the pipe open.

    Args:
        fd: where the lines come from.
        agent_pid: the agent, this process's parent.
    """

    def __init__(self, fd: int, agent_pid: int) -> None:
        self._fd = fd
        self._agent_pid = agent_pid
        self._buffer = b""
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._timeout_ms: float | None = None
        try:
            self._poll.register(os.pidfd_open(agent_pid), select.POLLIN)
        except (AttributeError, OSError):
            # An old kernel, seccomp profile or Python; or the agent is dead already.
            self._timeout_ms = 1000 * PARENT_CHECK_S

    def readline(self) -> str | None:
        """The next line without its end; None when the agent is gone."""
        while b"\n" not in self._buffer:
            ready = {fd for fd, _ in self._poll.poll(self._timeout_ms)}
            if not ready and os.getppid() == self._agent_pid:
                continue
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
    # Now, not when it is needed: its file may be out of reach by then.
    from hetagent.node.processes import finding as processes

    print("ready", flush=True)
    sessions: list[int] = []
    pipes = ""
    rehearsal: threading.Timer | None = None
    while (line := pipe.readline()) is not None:
        word, *rest = line.split()
        if word == "done":
            return 0
        if word == "pipes":
            pipes = line.partition(" ")[2]
        if word == "sessions":
            sessions = [int(pid) for pid in rest]
            if rehearsal is None and message["servers"]:
                # Of the goodbye: if it imported all it needs only then, the other nodes would wait for 0.3 to 1 s.
                rehearsal = threading.Timer(REHEARSE_AFTER_S, _rehearse, args=[message])
                rehearsal.daemon = True
                rehearsal.start()
    if pipes and sessions:
        have_saved(pipes)
    stubborn = processes.kill_all_of(message["incarnation"], sessions)
    if stubborn:
        _say(
            f"node {message['node_id']!r}: processes cannot be killed: {processes.describe_stuck(stubborn)}; "
            "check the node (GPU driver, file server) before you use it again"
        )
    signal.alarm(GOODBYE_LIMIT_S)
    goodbye(message)
    return 0


def have_saved(folder: str) -> None:
    """Ask workers to save their state, and wait until they have."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(folder) if name.isdecimal()]
    asked = [os.path.join(folder, f"{name}.done") for name in names if _ask(os.path.join(folder, name))]
    until = time.monotonic() + SAVE_S
    while not all(map(os.path.exists, asked)) and time.monotonic() < until:
        time.sleep(SAVE_CHECK_S)


def _ask(pipe: str) -> bool:
    """Whether somebody listens at a pipe, who is asked; what was answered before is forgotten."""
    with contextlib.suppress(OSError):
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.closing(os.fdopen(fd, "wb", buffering=0)) as file:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{pipe}.done")
            return file.write(b"!") == 1
    return False


def goodbye(message: dict[str, Any]) -> None:
    """Tell the server that the node left. An error is only printed, since the server finds out anyway.

    Args:
        message: `servers`, `token`, `token_file`, `tls`, `group`, `node_id` and `incarnation` of the agent. Without
            servers there is nobody to tell: the only one has died with the agent.
    """
    if not message["servers"]:
        return
    try:
        import asyncio

        asyncio.run(_leave(message, GOODBYE_TIMEOUT_S))
    except Exception as error:
        _say(
            f"could not tell {', '.join(message['servers'])} that node {message['node_id']!r} left group "
            f"{message['group']!r} ({type(error).__name__}: {error}); it finds out when the node's lease ends"
        )


def _rehearse(message: dict[str, Any]) -> None:
    """Say goodbye where nobody listens: a third of what it imports is imported only for its first request."""
    with contextlib.suppress(Exception):  # reported at the goodbye, if there is one
        import asyncio

        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            server = f"http://127.0.0.1:{nobody.getsockname()[1]}"
            asyncio.run(_leave({**message, "servers": [server], "token": None, "token_file": None}, 0.0))


async def _leave(message: dict[str, Any], within_s: float) -> None:
    """Tell whichever server is in charge, or soon will be; ask again for so long (seconds)."""
    import asyncio
    from functools import partial
    from pathlib import Path

    from hetrdzv.auth.client_token import reread_token
    from hetrdzv.auth.tls import ClientTls
    from hetrdzv.client.client import Client
    from hetrdzv.protocol.errors import Unreachable

    until = time.monotonic() + within_s
    tls = ClientTls(**{name: Path(path) if path else None for name, path in message["tls"].items()})
    token_file = Path(message["token_file"]) if message["token_file"] else None

    async with Client(
        message["servers"], token=message["token"], renew_token=lambda: reread_token(token_file), tls=tls
    ) as client:
        leave = partial(
            client.leave,
            message["group"],
            message["node_id"],
            incarnation=message["incarnation"],
            reason=REASON,
            died=1,
        )
        while True:
            try:
                await asyncio.wait_for(leave(), max(GOODBYE_PAUSE_S, until - time.monotonic()))
                return
            except Unreachable:
                if time.monotonic() + GOODBYE_PAUSE_S >= until:
                    raise
            await asyncio.sleep(GOODBYE_PAUSE_S)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal went with the agent
        print(f"hetagent guardian: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
