"""A worker that was a standby sees what it would see if it had been started in its round.

One probe runs both ways and dumps all that it sees. What differs is in `DIFFERS`. What the runner does for both,
tests/agent/worker/test_runner.py shows.
"""

import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.support import standbys

from hetagent.workers.starter import WorkerProgram

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
        "environ by os.system": os.system("test $RANK = 1 -a $HET_ROUND = 2 -a -z \"$HET_STARTED_AHEAD\""),
        "environ in C": c_environ(),
        "getenv": c_getenv(
            "RANK", "HET_ROUND", "HET_INCARNATION", "STEADY", "HET_STARTED_AHEAD", "SET_BY_AN_IMPORT"
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
    raise KeyError("the end")
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


def ended(process: "subprocess.Popen[bytes]", folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """What the probe saw, and how it ended: status, output, error file."""
    status = standbys.ended(process)
    text = {path.name: path.read_text().replace(str(folder), "FOLDER") for path in folder.iterdir()}
    record = json.loads(text["error"])
    del record["message"]["extraInfo"]["timestamp"], record["raised_at"]
    return json.loads(text["seen"]), [status, text["stdout"], text["stderr"], record]


@pytest.mark.parametrize(
    "words",
    [("probe.py", "-m", "--b", ""), ("-m", "pkg.mod", "--alone"), ("app.zip", "--alone")],
    ids=" ".join,
)
def test_a_script_sees_the_same_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    cold, warm = tmp_path / "cold", tmp_path / "warm"
    for folder in ("site", "pkg", "cold", "warm"):
        (tmp_path / folder).mkdir()
    (tmp_path / "site" / "imported.py").write_text(IMPORTED)
    for path in ("probe.py", "pkg/mod.py"):
        (tmp_path / path).write_text(PROBE)
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as file:
        file.writestr("__main__.py", PROBE)
    before = standbys.program(*words, **STEADY, PYTHONPATH=str(tmp_path / "site"))

    def in_round(folder: Path) -> WorkerProgram:
        files = {"HET_PROBE_INTO": folder / "seen", "TORCHELASTIC_ERROR_FILE": folder / "error"}
        return standbys.in_round(before, **{name: str(path) for name, path in files.items()})

    standby = standbys.ready(before, ["imported"])
    with standbys.outputs(cold) as streams:
        started = standbys.start(in_round(cold), *streams)
    with standbys.outputs(warm) as streams:
        taken = standby.become_worker(in_round(warm), *streams)
    (expected, end), (seen, own_end) = ended(started, cold), ended(taken, warm)
    for name in expected.keys() - DIFFERS.keys():
        assert seen[name] == expected[name], name
    assert set(expected["modules"]) <= set(seen["modules"]) <= set(expected["modules"]) | EARLIER
    assert own_end == end
    assert (end[0], end[1], end[3]["message"]["message"]) == (
        1,
        "the script, on stdout\n",
        "KeyError: 'the end'",
    )
    environ = dict(seen["environ"])
    assert environ.items() >= standbys.ROUND.items()
    assert environ["SET_BY_AN_IMPORT"] == "1"
    assert not {"REMOVED_BY_AN_IMPORT", "HET_STARTED_AHEAD"} & environ.keys()
    if "--alone" not in words:
        assert seen["multiprocessing"] == {"fork": 42, "spawn": 42, "forkserver": 42}
