"""A worker that was a standby sees what it would see if it had been started in its round.

One probe runs both ways and dumps all that it sees. What differs is in `DIFFERS`. What the runner does for both,
tests/agent/worker/test_runner.py shows.
"""

import json
import re
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.support import standbys

from hetagent.workers.starter import Program

IMPORTED = """
import os, warnings
warnings.filterwarnings("ignore", message="of no interest")
os.environ.setdefault("SET_BY_AN_IMPORT", "1")
os.environ.setdefault("STEADY", "not so")
os.environ.pop("REMOVED_BY_AN_IMPORT", None)
SEEN = {name: os.environ[name] for name in ("STEADY", "PATH", "SET_BY_AN_IMPORT", "UNUSUAL")}
"""
"""A module that does what modules do while they are imported: set variables, add a filter."""

PROBE = r'''
import imported

import ctypes, fcntl, importlib, io, json, multiprocessing, os, signal, subprocess, sys
import threading, traceback, warnings


def double(number):
    return 2 * number


def link(fd):
    return os.readlink(f"/proc/self/fd/{fd}")


def stream(name):
    file, fd = getattr(sys, name), {"stdin": 0, "stdout": 1, "stderr": 2}[name]
    return {
        "kind": [type(part).__name__ for part in (file, file.buffer, getattr(file.buffer, "raw", file.buffer))],
        "text": [file.encoding, file.errors, file.line_buffering, file.write_through, file.mode, file.name],
        "isatty": file.isatty(), "seekable": file.seekable(), "same": getattr(sys, f"__{name}__") is file,
        "fd": file.fileno(), "link": link(fd), "flags": fcntl.fcntl(fd, fcntl.F_GETFL),
        "position": os.lseek(fd, 0, os.SEEK_CUR) if file.seekable() and name != "stdin" else None,
    }


def c_environ():
    block = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found = []
    while block[len(found)]:
        found.append(os.fsdecode(block[len(found)]))
    return found


def c_getenv(*names):
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_char_p
    return {name: os.fsdecode(library.getenv(name.encode()) or b"") for name in names}


def descriptors():
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = [link(fd), os.get_inheritable(int(fd))]
        except OSError:
            pass
    return found


def status(*names):
    with open("/proc/self/status") as file:
        lines = dict(line.rstrip("\n").split(":\t", 1) for line in file)
    return {name: lines[name] for name in names}


def read(path):
    with open(path, "rb") as file:
        return os.fsdecode(file.read())


def started(method):
    """The result and the main module of a process of multiprocessing, which imports this file again."""
    context = multiprocessing.get_context(method)
    with context.Pool(1) as pool:
        return pool.apply(double, (21,))


def main():
    modules = sorted(sys.modules)
    seen = {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "cmdline": read("/proc/self/cmdline"),
        "stack": [frame.name for frame in traceback.extract_stack() if "runner" not in frame.filename],
        "path": sys.path,
        "finders": [
            [getattr(one, "__name__", type(one).__name__) for one in found] for found in (sys.meta_path, sys.path_hooks)
        ],
        "flags": list(sys.flags),
        "xoptions": sys._xoptions,
        "warnoptions": sys.warnoptions,
        "filters": repr(warnings.filters),
        "streams": {name: stream(name) for name in ("stdin", "stdout", "stderr")},
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__,
                  sys.unraisablehook is sys.__unraisablehook__, threading.excepthook is threading.__excepthook__,
                  sys.gettrace(), sys.getprofile()],
        "signals": {number: repr(signal.getsignal(number)) for number in signal.valid_signals()},
        "signal sets": status("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd"),
        "session": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
        "parent": os.getppid(),
        "cwd": os.getcwd(),
        "descriptors": descriptors(),
        "threads": [[thread.name for thread in threading.enumerate()], len(os.listdir("/proc/self/task"))],
        "comm": [read("/proc/self/comm"), read(f"/proc/self/task/{os.getpid()}/comm")],
        "environ": list(os.environ.items()),
        "environ kind": [type(os.environ).__module__, type(os.environ).__qualname__, os.environ == os.environb and 0],
        "environ of a child": subprocess.check_output(["env", "-0"]).decode(errors="surrogateescape"),
        "environ by os.system": os.system("test $RANK = 1 -a $HET_ROUND = 2 -a -z \"$HET_STANDBY\""),
        "environ in C": c_environ(),
        "getenv": c_getenv(
            "RANK", "HET_ROUND", "HET_INCARNATION", "STEADY", "HET_STANDBY", "SET_BY_AN_IMPORT"
        ),
        "environ in /proc": read("/proc/self/environ"),
        "environ at import": imported.SEEN,
        "modules": modules,
        "multiprocessing": {} if "--alone" in sys.argv else
            {method: started(method) for method in ("fork", "spawn", "forkserver")},
        "start method": multiprocessing.get_start_method(allow_none=True),
    }
    with open(os.environ["HET_PROBE_INTO"], "w") as file:
        json.dump(seen, file)
    print("the script, on stdout")
    print("the script, on stderr", file=sys.stderr)


if __name__ == "__main__":
    main()
'''


EARLIER = {
    "importlib._abc",
    "importlib.util",
    "select",
    "selectors",
    "signal",
    "socket",
    "_socket",
    "array",
    "math",
}
"""What the standby itself imports of the standard library, beside what the probe imports anyway."""

DIFFERS = {
    "environ in /proc": "the kernel shows the variables that the process was started with",
    "modules": "those are loaded already that the standby itself imports (EARLIER)",
}
"""What the probe sees otherwise, and why. Beside that a worker that was a standby is older than its round, and has used
CPU time before it."""

STEADY = {
    "STEADY": "same in every round",
    "REMOVED_BY_AN_IMPORT": "1",
    "UNUSUAL": "line\nline = \udcff é",
    "EMPTY": "",
}


@dataclass(frozen=True)
class Ended:
    """How a worker ended, and what it left.

    Attributes:
        status: its exit status.
        stdout, stderr: what it wrote, without addresses in memory.
        record: its error file, without the time.
        seen: what the probe saw.
    """

    status: int
    stdout: str
    stderr: str
    record: dict[str, Any] | None
    seen: dict[str, Any] | None


class Both:
    """Runs commands both ways in a folder; each way has files of its own for the worker's output.

    Attributes:
        preload: what the standby imports.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.preload = ["imported"]

    def __call__(self, *words: str, flags: Sequence[str] = (), **environ: str) -> tuple[Ended, Ended]:
        """How it ends when it is started in its round, and when a standby is taken that was made before."""
        before = standbys.program(
            *words, flags=flags, **STEADY, PYTHONPATH=str(self._folder / "site"), **environ
        )
        cold, warm = self._folder / "cold", self._folder / "warm"
        for folder in (cold, warm):
            folder.mkdir()
        standby = standbys.ready(before, self.preload)
        with standbys.outputs(cold) as streams:
            started = standbys.start(self._in_round(before, cold), *streams)
        with standbys.outputs(warm) as streams:
            taken = standby.become_worker(self._in_round(before, warm), *streams)
        ended = self._ended(started, cold), self._ended(taken, warm)
        for folder in (cold, warm):
            shutil.rmtree(folder)
        return ended

    def alike(self, *words: str, flags: Sequence[str] = (), **environ: str) -> Ended:
        """Assert that both ways end alike, but for what the probe sees; returns the end of the warm one."""
        cold, warm = self(*words, flags=flags, **environ)
        assert replace(warm, seen=None) == replace(cold, seen=None)
        return warm

    @staticmethod
    def _in_round(before: Program, folder: Path) -> Program:
        return standbys.in_round(
            before, HET_PROBE_INTO=str(folder / "seen"), TORCHELASTIC_ERROR_FILE=str(folder / "error")
        )

    @staticmethod
    def _ended(process: "subprocess.Popen[bytes]", folder: Path) -> Ended:
        status = standbys.ended(process)

        def text(name: str) -> str:
            path = folder / name
            return path.read_text().replace(str(folder), "FOLDER") if path.exists() else "null"

        record = json.loads(text("error"))
        if record is not None:
            del record["message"]["extraInfo"]["timestamp"]
            record.pop("raised_at", None)
        outputs = [re.sub("0x[0-9a-f]{8,}", "ADDRESS", text(name)) for name in ("stdout", "stderr")]
        return Ended(status, *outputs, record, json.loads(text("seen")))


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Both:
    """In a folder with the probe as a script, a package, a directory and a zip file."""
    monkeypatch.chdir(tmp_path)
    for folder in ("site", "pkg"):
        (tmp_path / folder).mkdir()
    (tmp_path / "site" / "imported.py").write_text(IMPORTED)
    for path in ("probe.py", "pkg/mod.py"):
        (tmp_path / path).write_text(PROBE)
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as file:
        file.writestr("__main__.py", PROBE)
    return Both(tmp_path)


def assert_seen_alike(cold: Ended, warm: Ended) -> None:
    """The probe saw the same, but for `DIFFERS`."""
    assert cold.seen is not None, cold.stderr
    assert warm.seen is not None, warm.stderr
    assert {name for name in cold.seen if cold.seen[name] != warm.seen[name]} <= DIFFERS.keys()
    for name in cold.seen.keys() - DIFFERS.keys():
        assert warm.seen[name] == cold.seen[name], name
    assert set(cold.seen["modules"]) <= set(warm.seen["modules"]) <= set(cold.seen["modules"]) | EARLIER
    assert replace(warm, seen=None) == replace(cold, seen=None)


@pytest.mark.parametrize(
    "words",
    [
        ("probe.py", "-m", "--b", ""),
        ("-m", "pkg.mod", "--alone"),
        ("app.zip", "--alone"),
    ],
    ids=" ".join,
)
def test_a_script_sees_the_same(both: Both, words: tuple[str, ...]) -> None:
    cold, warm = both(*words)
    assert_seen_alike(cold, warm)
    assert warm.status == 0
    assert warm.seen is not None
    environ = dict(warm.seen["environ"])
    assert environ.items() >= standbys.ROUND.items()
    assert environ["SET_BY_AN_IMPORT"] == "1"
    assert not {"REMOVED_BY_AN_IMPORT", "HET_STANDBY"} & environ.keys()
    if "--alone" not in words:
        assert warm.seen["multiprocessing"] == {"fork": 42, "spawn": 42, "forkserver": 42}
        assert warm.stdout == "the script, on stdout\n"


ENDINGS = {
    "chained, after atexit": "import atexit; atexit.register(print, 'bye')\ntry:\n    1 / 0\n"
    "except ZeroDivisionError as e:\n    raise KeyError('b') from e",
    "syntax error": "x = = 1",
    "SIGTERM": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "crash": "import ctypes; ctypes.string_at(0)",
    "fork": "import os\npid = os.fork()\nif not pid: raise ValueError('child')\nos.waitpid(pid, 0)",
    "finalizer": "class D:\n    def __del__(self): print('del', __name__)\nd = D()",
    "warning": "import warnings\nwarnings.warn('old', DeprecationWarning)\nwarnings.warn('of no interest')",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_it_ends_the_same(both: Both, tmp_path: Path, ending: str) -> None:
    (tmp_path / "s.py").write_text(
        f"import imported\n{ENDINGS[ending]}" if ending != "syntax error" else "x = = 1"
    )
    if ending == "syntax error":  # it ends before it imports anything
        both.preload = []
    warm = both.alike("s.py")
    assert ("runner.py" in warm.stderr) == (ending == "crash")
    assert "waiting.py" not in warm.stderr
