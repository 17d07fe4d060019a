"""The guardian's program: ends the workers of an agent that died.

`guardian.Guardian` starts it as `python -I -S guardian_process.py`. Without site-packages it starts in some 20 ms, and
it stays small for a while. It reads JSON from stdin, a value a line: first who the agent is and where those workers
listen that save their state when asked, which it answers with `ready`; later the workers' sessions from now on, as
pids. If the pipe or the agent ends, the workers belong to nobody; an agent that ends in order kills it before. Nothing
is passed by arguments or environment, since these are public.
"""

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hetagent.node.processes.identity import AgentIdentity, ServerAccess

GOODBYE_LIMIT_S = 8
"""Whole seconds that the goodbye may take: imports and resolvers have no time-outs."""

SAVE_S = 5.0
"""How long workers have to save their state before they are killed (seconds)."""

SAVE_CHECK_S = 0.01
"""How often to see whether they have (seconds)."""

PARENT_CHECK_S = 1.0
"""How often to look for the agent (seconds): a worker that was forked without exec holds its end of the pipe open."""

PREPARE_AFTER_S = 30.0
"""When what the goodbye needs is imported (seconds): workers that start need the CPU."""

IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that Slurm sends to all processes of a job are meant for the agent, which then leaves properly."""

REASON = "its agent died, and its workers were stopped"


def read_agent_lines(fd: int, agent_pid: int) -> Iterator[str]:
    """The lines that an agent, this process's parent, sends until it dies."""
    buffer = b""
    while True:
        readable = select.select([fd], [], [], PARENT_CHECK_S)[0]
        if not readable and os.getppid() == agent_pid:
            continue
        chunk = os.read(fd, 65_536) if readable else b""
        if not chunk:
            return
        *lines, buffer = (buffer + chunk).split(b"\n")
        yield from (line.decode() for line in lines)


def main() -> int:
    """Watch over one agent; returns the exit status."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    lines = read_agent_lines(sys.stdin.fileno(), os.getppid())
    if (first := next(lines, None)) is None:
        return 1  # the agent died before it said whose workers to stop: it had none
    agent = json.loads(first)
    sys.path[:] = agent["sys_path"]
    # Now, not when it is needed: its file may be out of reach later.
    from hetagent.node.processes import proctree as processes

    print("ready", flush=True)
    if agent["goodbye"]:
        prepared = threading.Timer(PREPARE_AFTER_S, _unpickle, [agent["goodbye"]])
        prepared.daemon = True
        prepared.start()
    sessions: list[int] = []
    for line in lines:
        sessions = json.loads(line)
    if agent["pipes"] and sessions:
        have_workers_save(agent["pipes"])
    if stubborn := processes.kill_incarnation(agent["incarnation"], sessions):
        _log(
            f"processes cannot be killed: {processes.describe_stuck(stubborn)}; "
            "check the node (GPU driver, file server) before you use it again"
        )
    if agent["goodbye"]:
        signal.alarm(GOODBYE_LIMIT_S)
        with contextlib.suppress(Exception):  # the server finds out by itself
            import asyncio

            asyncio.run(say_goodbye(*_unpickle(agent["goodbye"])))
    return 0


def have_workers_save(folder: str) -> None:
    """Ask workers to save their state, and wait until they have."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(folder) if name.isdecimal()]
    asked = [
        os.path.join(folder, f"{name}.done") for name in names if _ask_to_save(os.path.join(folder, name))
    ]
    until = time.monotonic() + SAVE_S
    while not all(map(os.path.exists, asked)) and time.monotonic() < until:
        time.sleep(SAVE_CHECK_S)


def _ask_to_save(pipe: str) -> bool:
    """Whether somebody listens at a pipe, who is asked; what was answered before is forgotten."""
    with contextlib.suppress(OSError):
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        with os.fdopen(fd, "wb", buffering=0) as file:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{pipe}.done")
            return file.write(b"!") == 1
    return False


async def say_goodbye(identity: "AgentIdentity", access: "ServerAccess") -> None:
    """Tell the server that the node left."""
    async with access.client() as client:
        await client.leave(
            identity.group, identity.node_id, incarnation=identity.incarnation, reason=REASON, died=1
        )


def _unpickle(pickled: str) -> tuple["AgentIdentity", "ServerAccess"]:
    """Who leaves, and how to say so. What that imports takes half a second, for which the other nodes would wait."""
    import pickle

    identity, access = pickle.loads(bytes.fromhex(pickled))
    return identity, access


def _log(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal went with the agent
        print(f"hetagent guardian: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
