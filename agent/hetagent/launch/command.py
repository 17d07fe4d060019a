"""Turns a script and its arguments into the command that a worker runs."""

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hetagent.errors import CommandError, OutOfResourcesError, PermanentStartError
from hetagent.worker import runner

MAX_NAME = 256
"""How long the name of a script may be for the server (characters)."""

RUNNER = Path(runner.__file__).resolve()


SHORT_OF = {
    errno.EMFILE: "raise the limit of open files: ulimit -n 4096, LimitNOFILE= of systemd, --ulimit nofile= of docker",
    errno.ENFILE: "raise fs.file-max of this machine (sysctl)",
    errno.EAGAIN: "raise what is too low: ulimit -u, pids.max of the container's cgroup, --pids-limit of docker",
    errno.ENOMEM: "free memory on this node, or raise its limits (memory.max of its cgroup, ulimit -v)",
}
"""What to do where the system refuses to start a process."""


def explain_start_error(error: Exception) -> Exception:
    """Why workers could not be started, with what to change where that is known."""
    number = getattr(error, "errno", None)
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    elif error.args == ("can't start new thread",):
        number = errno.EAGAIN
    if (advice := SHORT_OF.get(number or 0)) is not None:
        return OutOfResourcesError(f"{str(error) or 'out of memory'}: {advice}")
    match error:
        case OSError(errno=errno.ENOEXEC, filename=path):
            return PermanentStartError(
                f"'{path}' is not executable here: a script starts with a line such as #!/bin/bash; "
                "for Python leave out --no-python"
            )
        case OSError(errno=errno.ENOENT, filename=str() as path) if os.path.isfile(path):
            return PermanentStartError(
                f"'{path}' cannot be run: the program that its first line (#!) names is not on this node"
            )
    return error


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """What every worker of a node runs.

    Attributes:
        entrypoint: the program.
        args: its arguments.
        is_python: whether it runs under our runner, which records exceptions; if not, only the end of stderr is known.
    """

    entrypoint: str
    args: tuple[str, ...]
    is_python: bool


MOST_BYTES = 16 << 20
"""The largest file of which a checksum is made, so that an archive does not keep an agent (bytes)."""

CHECKSUM = 8
"""How many hexadecimal digits of a script's checksum are sent."""


def make_worker_command(
    script: str, args: Sequence[str], *, module: bool = False, no_python: bool = False, run_path: bool = False
) -> WorkerCommand:
    """The command of a worker; the flags mean what they mean to torchrun."""
    if module and no_python:
        raise CommandError("--module and --no-python contradict each other: give one of them")
    if no_python and not run_path:
        return WorkerCommand(_find_program(script), tuple(args), is_python=False)
    if not module and not os.path.exists(script):
        raise PermanentStartError(f"script '{script}' does not exist (looked from {os.getcwd()})")
    if not module and os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        raise PermanentStartError(
            f"script '{script}' is a folder without __main__.py: give the path of a script"
        )
    flags = ("-m",) if module else ()
    return WorkerCommand(find_python(), ("-u", str(RUNNER), *flags, script, *args), is_python=True)


def identify_script(script: str | None, *, module: bool, no_python: bool) -> tuple[str, str]:
    """What other nodes of the job have to run as well, wherever it lies on them, and its checksum.

    Empty: nobody compares it, since a program may be another one on each node; or it has none, or is no file.
    """
    if script is None or no_python:
        return "", ""
    if module:
        return script[:MAX_NAME], ""
    digest = ""
    with contextlib.suppress(OSError):
        found = os.stat(script)
        if stat.S_ISREG(found.st_mode) and found.st_size <= MOST_BYTES:  # what is in a pipe is there once
            digest = hashlib.sha256(Path(script).read_bytes()).hexdigest()[:CHECKSUM]
    return Path(script).name[:MAX_NAME], digest


def _find_program(name: str) -> str:
    """The path of a program, looked up as a shell does."""
    if (program := shutil.which(name)) is not None:
        return program
    if not os.path.isfile(name):
        raise PermanentStartError(f"program '{name}' is not found: give its path, or install it on this node")
    path = name if os.path.dirname(name) else f"./{name}"
    if os.access(path, os.X_OK):
        raise PermanentStartError(f"program '{name}' is not on PATH: write {path} for the one in this folder")
    raise PermanentStartError(
        f"program '{name}' is not executable: run chmod +x {path}, or leave --no-python out for Python"
    )


def parse_group_command(words: Sequence[str]) -> WorkerCommand:
    """The command of a worker from a group's `command`: a script with its arguments.

    The script may be preceded by `-m` if it is a module, or by `--no-python` if it is a program.
    """
    rest = list(words)
    module = no_python = False
    while rest and rest[0] in ("-m", "--module", "--no-python"):
        flag = rest.pop(0)
        module, no_python = module or flag != "--no-python", no_python or flag == "--no-python"
    if not rest:
        raise CommandError(f"the group's command {' '.join(words)!r} names no script")
    return make_worker_command(rest[0], rest[1:], module=module, no_python=no_python)


def find_python() -> str:
    """The workers' Python interpreter."""
    return os.environ.get("PYTHON_EXEC", sys.executable)
