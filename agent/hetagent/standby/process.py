"""One standby: started, told what to import, and handed over to a round."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence

from hetagent.node.processes import proctree as processes
from hetagent.standby import import_ahead
from hetagent.standby.import_ahead import belongs_to_round
from hetagent.worker.runner import AHEAD
from hetagent.workers.starter import WorkerProgram

END_TIMEOUT_S = 2.0
"""How long a standby may take to die, or to take an order (seconds)."""

IMPORT_AHEAD = import_ahead.__file__
"""What runs in standbys and workers."""

MARKS = (processes.INCARNATION, processes.NODE_ID, processes.AGENT_PID, processes.GROUP)
"""The variables of a round by which the agent, its guardian and a later agent find what they have to end."""


def _static_env(program: WorkerProgram) -> dict[str, str]:
    """The part of its environment that does not depend on the round."""
    return {name: value for name, value in program.environ.items() if not belongs_to_round(name)}


def differs_by_round_only(started_for: WorkerProgram, program: WorkerProgram) -> bool:
    """Whether a standby that was started for one program can become the worker of another."""
    return started_for.args == program.args and _static_env(started_for) == _static_env(program)


class Standby:
    """A process that waits to become a worker. It is a child of this process and leads a session of its own.

    Attributes:
        program: as given.
        process: the process.
        started_at: when it was started (seconds since the epoch).
        ready: it has imported everything.
        left_out: a module that it did not import, or should not have, and why; it is not to be taken then.
    """

    def __init__(
        self, program: WorkerProgram, preload: Sequence[str], notes: str = "", without: Sequence[str] = ()
    ) -> None:
        self.program = program
        self.started_at = time.time()
        self.ready = False
        self.left_out: tuple[str, str] | None = None
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(END_TIMEOUT_S)
        marks = {name: program.environ[name] for name in MARKS if name in program.environ}
        order = theirs.fileno(), [*preload], notes, [*without]
        try:
            with theirs:
                self.process = subprocess.Popen(
                    program.args,
                    env={
                        **_static_env(program),
                        **marks,
                        AHEAD: f"{IMPORT_AHEAD}{os.pathsep}{json.dumps(order)}",
                    },
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=(theirs.fileno(),),
                )
        except BaseException:
            self._channel.close()
            raise

    def fileno(self) -> int:
        """Readable when the standby has something to say, or has ended."""
        return self._channel.fileno()

    def read_messages(self) -> bool:
        """Take in what it reports; False if it has ended, or will."""
        try:
            message = json.loads(self._channel.recv(65_536))
        except (OSError, ValueError):
            return False
        if "left_out" in message:
            self.left_out = (message["left_out"], message["why"])
            return False
        self.ready = True
        return True

    def become_worker(self, program: WorkerProgram, stdout: int, stderr: int) -> "subprocess.Popen[bytes]":
        """Make it the worker of a round.

        One that still imports begins when it has finished; that is never later than a process started now would. If it
        should not have imported something, or would not import the same now, it starts over by itself.
        """
        try:
            if self.process.poll() is not None:
                raise ChildProcessError("it had died")
            with open(os.memfd_create("environ"), "wb+") as environ:
                environ.write(json.dumps(dict(program.environ)).encode())
                environ.seek(0)
                socket.send_fds(self._channel, [b"!"], (stdout, stderr, environ.fileno()))
        except OSError:
            self.kill()
            raise
        self._channel.close()
        return self.process

    def kill(self) -> int:
        """Kill it with what its imports have started, give back what it took, and return its exit status.

        One that hangs in the kernel is not waited for: nothing that a round needs is in its hands.
        """
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # it leads a session, and was not waited for
        self._channel.close()
        try:
            return self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
