"""Starts the guardian and talks to it over a pipe; `guardian_process.py` is its program."""

import contextlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import hetagent
import hetrdzv
from hetagent.errors import AgentError
from hetagent.node.processes import guardian_process
from hetagent.node.processes.identity import AgentIdentity, ServerAccess
from hetagent.node.self_pipe import wait_readable

WITHOUT = "without it, workers would outlive a killed agent"

START_TIMEOUT_S = 10.0

ENVIRONMENT = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "TZ")
"""What the guardian gets of the agent's environment: no secret, and no mark that makes it look like a worker."""


class GuardianError(AgentError):
    """The guardian cannot be started, so workers would outlive an agent that is killed."""


class Guardian:
    """A process that kills an agent's workers and says goodbye to the server if the agent dies.

    Readable (`fileno`) once the guardian itself has died: then `start` it again.

    Args:
        access: how it says goodbye; None: to nobody.
        pipes: the folder where workers listen that save their state when asked; None: none do.

    Attributes:
        pickled_goodbye: who leaves, and how the guardian says so, if anybody is to know.
        pid: the guardian's; None before `start` and after `dismiss`.
    """

    def __init__(
        self, identity: AgentIdentity, access: ServerAccess | None, pipes: Path | None = None
    ) -> None:
        self.pickled_goodbye = pickle.dumps((identity, access)).hex() if access is not None else ""
        self._incarnation = identity.incarnation
        self._who = f"the guardian of node {identity.node_id!r}"
        self._pipes = str(pipes or "")
        self._sessions: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def fileno(self) -> int:
        """A descriptor that becomes readable when the guardian dies; -1: it is not running."""
        return -1 if self._process is None or self._process.stdout is None else self._process.stdout.fileno()

    def start(self) -> None:
        """Start it, or another one if it has died; returns when it is on guard, after some 40 ms."""
        self.dismiss()
        command = [sys.executable, "-I", "-S", os.path.abspath(guardian_process.__file__)]
        # In a session of its own, so that neither the terminal's signals nor a kill of the agent's group reach it.
        # Workers do not inherit its pipes, since subprocesses close all other descriptors.
        try:
            self._process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:  # no process or file descriptor is left
            raise GuardianError(f"{self._who} cannot be started ({error}): {WITHOUT}") from None
        agent = {"incarnation": self._incarnation, "goodbye": self.pickled_goodbye, "pipes": self._pipes}
        self._send(agent | {"sys_path": make_sys_path()})
        if not wait_readable([self], START_TIMEOUT_S):
            self._process.kill()
        if os.read(self.fileno(), 64) != b"ready\n":
            status = self.dismiss()
            raise GuardianError(
                f"{self._who} did not start (status {status} of {' '.join(command)}): {WITHOUT}; stderr says more"
            )
        self.set_sessions(self._sessions)

    def set_sessions(self, sessions: Collection[int]) -> None:
        """Tell it which sessions are the workers', so that it finds even those that overwrote their environment.

        Call this with none once the workers are gone: their ids may be reused.
        """
        self._sessions = list(sessions)
        self._send(self._sessions)

    def dismiss(self) -> int | None:
        """End it without any action on its part; returns its exit status, None: it was not running."""
        process, self._process = self._process, None
        if process is None:
            return None
        with process:  # which closes its pipes only then, or it would take that for the agent's death
            process.kill()
        return process.returncode

    def _send(self, message: object) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        # If it has died, `fileno` shows it, and the next one gets the message as well.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")


def make_sys_path() -> list[str]:
    """Where this process imports from, as absolute paths, and where both packages are if import hooks found them."""
    packages = (os.path.dirname(package.__path__[0]) for package in (hetagent, hetrdzv))
    return [*map(os.path.abspath, sys.path), *map(os.path.abspath, packages)]
