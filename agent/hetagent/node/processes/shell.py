"""A command of the site, for /bin/sh: its processes are marked, so that none of them is left."""

import contextlib
import os
import subprocess
from collections.abc import Mapping
from typing import IO

from hetagent.node.processes import proctree as processes

REAP_S = 1.0
"""How long it takes at most until a killed one can be reaped (seconds)."""


class ShellCommand:
    """One run of a command."""

    def __init__(
        self, command: str, mark: str, value: str, stdout: int | IO[bytes], environ: Mapping[str, str] = {}
    ) -> None:
        self._mark, self._value = mark, value
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environ, mark: value},
            start_new_session=True,
        )

    def has_ended(self) -> bool:
        """Whether it has; it stays a zombie, so that nothing else can get its pid, which is that of its session."""
        if self.process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def kill(self) -> list[processes.Process]:
        """Kill what is left of it, with all that it has started, and reap it; returns those that do not die."""
        sessions = {self.process.pid} if self.process.returncode is None else ()
        stuck = processes.kill_tree(lambda: processes.marked(self._value, self._mark), sessions)
        alive = processes.living()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.0 if stuck else REAP_S)
        return [alive[pid] for pid in stuck if pid in alive]
