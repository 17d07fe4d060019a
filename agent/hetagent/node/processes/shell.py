"""Short commands of ours, and those of the site, whose processes are marked, so that none of them is left."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence

from hetagent.node.processes import proctree as processes

REAP_S = 1.0
"""How long it takes at most until a killed one can be reaped, and its output is read (seconds)."""

KEPT_BYTES = 8192
"""How much of the beginning and of the end of its output is kept."""


class CommandFailed(Exception):
    """A command could not be run, failed, or took too long; says how in a few words."""


def run_command(words: Sequence[str], timeout_s: float) -> str:
    """What a command prints on stdout."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        raise CommandFailed(str(error)) from None
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"no answer within {timeout_s:g} s") from None
    if done.returncode != 0:
        raise CommandFailed((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    return done.stdout


class ShellCommand:
    """One run of a command of the site, for /bin/sh; by a variable of its environment its processes are found.

    Attributes:
        head, tail: the beginning and the end of its stdout and stderr.

    Raises:
        OSError, ValueError: it cannot be started.
    """

    def __init__(self, command: str, mark: str, value: str, environ: Mapping[str, str] = {}) -> None:
        self._mark, self._value = mark, value
        self.head = self.tail = b""
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environ, mark: value},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read_output, name="hetagent-shell", daemon=True)
        self._reader.start()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            while chunk := os.read(output.fileno(), 65_536):
                self.head = (self.head + chunk)[:KEPT_BYTES] if len(self.head) < KEPT_BYTES else self.head
                self.tail = (self.tail + chunk)[-KEPT_BYTES:]

    def has_ended(self) -> bool:
        """Whether it has; it stays a zombie, so that nothing else can get its pid, which is that of its session."""
        if self.process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def kill(self) -> list[processes.Process]:
        """Kill what is left of it, with all that it has started, and reap it; returns those that do not die.

        After that, `head` and `tail` are complete.
        """
        sessions = {self.process.pid} if self.process.returncode is None else ()
        stuck = processes.kill_tree(lambda: processes.find_by_incarnation(self._value, self._mark), sessions)
        alive = processes.list_processes()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.0 if stuck else REAP_S)
        self._reader.join(0.0 if stuck else REAP_S)
        return [alive[pid] for pid in stuck if pid in alive]
