"""One standby: started, told what to import, and handed over to a round."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from typing import Any

from hetagent.node import scratch
from hetagent.node.processes import finding as processes
from hetagent.standby import waiting
from hetagent.standby.waiting import CHANNEL, belongs_to_round
from hetagent.worker.runner import AHEAD
from hetagent.workers.starter import Program

TAKE_TIMEOUT_S = 2.0
"""How long a standby that was ready may take to become a worker (seconds); it needs about a millisecond."""

END_TIMEOUT_S = 2.0
"""How long a standby may take to die (seconds)."""

WAITING = waiting.__file__
"""What runs in standbys and workers."""

KEPT = (processes.INCARNATION, processes.NODE_ID, processes.AGENT_PID, processes.GROUP)
"""The variables of a round by which the agent, its guardian and a later agent find what they have to end."""


def _steady(program: Program) -> dict[str, str]:
    """The part of its environment that does not depend on the round."""
    return {name: value for name, value in program.environ.items() if not belongs_to_round(name)}


def fits(started_for: Program, program: Program) -> bool:
    """Whether a standby that was started for one program can become the worker of another."""
    return started_for.args == program.args and _steady(started_for) == _steady(program)


class NotTaken(RuntimeError):
    """A standby did not become a worker; the text says why."""


class Standby:
    """A process that waits to become a worker. It is a child of this process and leads a session of its own.

    Args:
        program: what its worker will run. Of the variables that belong to a round only the marks matter, by which its
            processes are found.
        preload: the modules that it imports first.
        seen: what an earlier worker noted of its imports; it imports those modules that are installed.
        paced: it leaves half of a CPU's time to others while it imports.

    Attributes:
        program: as given.
        seen: as given last.
        process: the process.
        ready: it has imported everything.
        left_out: a module that it did not import, or should not have, and why; it is not to be taken then.
        anew: why it has dropped what it had imported when it was taken, and started like any worker; empty: it has not.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self, program: Program, preload: Sequence[str], seen: Sequence[str] = (), *, paced: bool
    ) -> None:
        self.program = program
        self.seen: list[str] = []
        self.ready = False
        self.left_out: tuple[str, str] | None = None
        self.anew = ""
        self._channel, theirs = socket.socketpair()
        self._printed = [scratch.nameless(), scratch.nameless()]
        marks = {name: program.environ[name] for name in KEPT if name in program.environ}
        environ = {**_steady(program), **marks, AHEAD: WAITING, CHANNEL: str(theirs.fileno())}
        try:
            with theirs:
                self.process = subprocess.Popen(
                    program.args,
                    env=environ,
                    stdout=self._printed[0],
                    stderr=self._printed[1],
                    start_new_session=True,
                    pass_fds=(theirs.fileno(),),
                )
            self._channel.settimeout(TAKE_TIMEOUT_S)
            self.order(preload, seen, paced=paced)
        except BaseException:
            self._close()
            raise

    def order(self, preload: Sequence[str], seen: Sequence[str], *, paced: bool) -> None:
        """Have it import (more) modules; it is ready once it says so. The arguments are those of the class."""
        self.seen, self.ready = list(seen), False
        self._send({"preload": list(preload), "seen": self.seen, "paced": paced})

    def fileno(self) -> int:
        """Readable when the standby has something to say, or has ended."""
        return self._channel.fileno()

    def hear(self) -> bool:
        """Take in what it says; False if it has ended, or will."""
        try:
            message = self._receive()
        except (OSError, ValueError):
            return False
        if "left_out" in message:
            self.left_out = (message["left_out"], message["why"])
            return False
        self.ready = True
        return True

    def take(self, program: Program, stdout: int, stderr: int) -> "subprocess.Popen[bytes]":
        """Make it the worker of a round.

        One that still imports begins when it has finished; that is never later than a process started now would. If it
        should not have imported something, or would not import the same now, it begins anew by itself.

        Args:
            program: of the round; this standby fits it.
            stdout, stderr: descriptors of the worker's output.

        Raises:
            NotTaken: it has died or does not answer; it was ended.
        """
        try:
            self._send({"environ": dict(program.environ)}, (stdout, stderr))
            answer = self._receive() if self.ready else {"taken": True}
            if not answer.get("taken"):
                raise NotTaken("it answered something else")
            self.anew = str(answer.get("anew", ""))
        except (OSError, ValueError) as error:
            self.end()
            raise NotTaken(
                f"it did not answer within {TAKE_TIMEOUT_S:g} s"
                if isinstance(error, TimeoutError)
                else "it had died"
            ) from None
        self._close()
        return self.process

    def printed(self) -> str:
        """The last line of what it printed on stderr; empty if there is none."""
        data = os.pread(self._printed[1], 65_536, max(0, os.fstat(self._printed[1]).st_size - 65_536))
        lines = data.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def end(self) -> int:
        """Kill it with what its imports have started, give back what it took, and return its exit status.

        One that hangs in the kernel is not waited for: nothing that a round needs is in its hands.
        """
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # it leads a session, and was not waited for
        self._close()
        try:
            return self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL

    def _close(self) -> None:
        self._channel.close()
        for descriptor in self._printed:
            os.close(descriptor)
        self._printed = []

    def _send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        body = json.dumps(message).encode()
        socket.send_fds(self._channel, [len(body).to_bytes(4, "big")], descriptors)
        self._channel.sendall(body)

    def _receive(self) -> dict[str, Any]:
        length = int.from_bytes(self._exactly(4), "big")
        message: dict[str, Any] = json.loads(self._exactly(length))
        return message

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self._channel.recv(count - len(data))
            if not chunk:
                raise ConnectionError("the standby has closed its end")
            data += chunk
        return data
