"""The waiting part of a standby: a worker's process that was started before its round was known.

The runner calls `wait_for_round` when it has done all that it can do before the script runs (see worker/runner.py).
Here the standby imports what its order says, reports that it is ready, and waits on a socket for what only the round
knows. When `wait_for_round` returns, the process is a worker: nothing of the standby is left but the imported modules.
`begin` has a worker note what it imports. The messages:

    standby -> agent    {}, or {"left_out": MODULE, "why": TEXT} if it must not be taken
    agent -> standby    three descriptors: the worker's stdout, stderr, and a file with its environment as JSON

The standby ends when the agent closes its end. Standard library only, imported in a bare interpreter.
"""

import contextlib
import importlib.util
import json
import os
import select
import socket
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn, TextIO

    Versions = dict[str, tuple[int, ...] | None]

NAME = "het-standby"
"""What `ps -o comm` and `top` show of a standby that is ready."""

ROUND_NAMES = frozenset(
    ["ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCH_NCCL_ASYNC_ERROR_HANDLING"]
    + [of + name for of in ("", "LOCAL_", "GROUP_", "ROLE_") for name in ("RANK", "WORLD_SIZE")]
)
ROUND_PREFIXES = ("TORCHELASTIC_", "HET_")

SITES = ("/site-packages", "/dist-packages")
"""How the names of folders end into which packages are installed; only that changes them."""

GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


def belongs_to_round(name: str) -> bool:
    """Whether an environment variable is set for a round; all others are the same in every round."""
    return name in ROUND_NAMES or name.startswith(ROUND_PREFIXES)


def wait_for_round(order: str, started_as: "list[str]") -> "Callable[[str], NoReturn] | None":
    """Import what the agent says, and return once this process is a worker of a round.

    The order is a JSON list: the socket's descriptor, what to preload, the file of notes on a worker's imports ("":
    none), and modules that are left out.
    Returns what starts over, by the command line `started_as` and without what was imported, after an exception of that
    kind; None if nothing was imported but what somebody has named.
    """
    fd, preload, notes, left_out = json.loads(order)
    channel = socket.socket(fileno=fd)
    os.set_inheritable(channel.fileno(), False)
    # The marks of processes are for /proc; a module that copies the environment asks for none of them.
    for name in list(filter(belongs_to_round, os.environ)):
        del os.environ[name]
    own_name, before = _rename_thread(None), dict(os.environ)
    script = os.path.abspath(sys.argv[0])
    code: Versions = {place: _stat_version(place) for place in (script, sys.executable, *sys.path)}
    seen = _read_notes(notes)
    problem = _import_all(preload, seen, left_out, before, code, channel)
    if problem is None:
        _rename_thread(NAME)
    with contextlib.suppress(OSError):  # the agent has taken this standby before it was ready
        channel.sendall(json.dumps(problem or {}).encode())
    environ = _receive_round(channel)
    channel.close()
    _rename_thread(own_name)

    def start_over(why: str) -> "NoReturn":
        print(f"hetagent: {why}: starting over without that", file=sys.stderr, flush=True)
        os.execvpe(started_as[0], started_as, environ)  # /proc/self/cmdline may be overwritten

    if problem is not None:
        os.execvpe(started_as[0], started_as, environ)
    if changed := [file for file, version in code.items() if _stat_version(file) != version]:
        start_over(f"{changed[0]} has changed since a standby imported ahead")
    imported = {name: value for name, value in os.environ.items() if before.get(name) != value}
    removed = before.keys() - os.environ.keys()
    os.environ.clear()
    os.environ.update(environ | imported)
    for name in removed:
        os.environ.pop(name, None)
    if not seen:
        return None
    return lambda kind: start_over(f"{kind} while the script imports, after --preload auto has imported")


# -- whether a plain start would import the same ------------------------------------------------------------------


def _list_own_files() -> "Versions":
    """The files of loaded modules that are part neither of Python nor of what is installed, and their versions."""
    homes = tuple(f"{home}/" for home in (os.path.dirname(os.__file__), *_package_folders()))
    # An attribute may be made when it is asked for.
    files = [getattr(module, "__dict__", {}).get("__file__") for module in list(sys.modules.values())]
    return {
        file: _stat_version(file)
        for file in files
        if isinstance(file, str) and file.startswith("/") and not file.startswith(homes)
    }


def _package_folders() -> "list[str]":
    return [place for place in sys.path if place.endswith(SITES)]


def _stat_version(path: str) -> "tuple[int, ...] | None":
    """Which file or folder it is, and of when and how large; None: there is none.

    Not when a folder has changed, but for those of packages: scripts write checkpoints and logs beside them.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    which = (status.st_dev, status.st_ino)
    changes = path.endswith(SITES) or not stat.S_ISDIR(status.st_mode)
    return (*which, status.st_mtime_ns, status.st_size) if changes else which


# -- importing ----------------------------------------------------------------------------------------------------


def begin(path: str) -> None:
    """From now on, append to this file what is imported, for the next worker in this one's place.

    Its first line is the version of the script; if that is another one now, the notes begin anew. The others are in the
    order of events, each there once: the name of a module that was looked for, or `=` and a variable's name if its
    value is not what it was at the start.
    """
    noted = _read_notes(path)
    with contextlib.suppress(OSError):  # the folder is gone: somebody has cleaned up TMPDIR
        file = open(path, "a" if noted else "w", buffering=1, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
        if not noted:
            file.write(_notes_header())
        sys.meta_path.insert(0, _ImportRecorder(file, set(noted)))


def _notes_header() -> str:
    """The first line of notes on this script."""
    return f"# {_stat_version(os.path.realpath(sys.argv[0]))}\n"


def _read_notes(path: str) -> "list[str]":
    """The notes in a file; none if they are on another version of the script."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="surrogateescape") as file:
        if file.readline() == _notes_header():
            return file.read().split("\n")
    return []


class _ImportRecorder:
    """A finder that finds nothing, and adds to a file of which it knows the lines."""

    def __init__(self, file: "TextIO", noted: "set[str]") -> None:
        self._file = file
        self._noted = noted
        self._pid = os.getpid()
        self._path = list(sys.path)
        self._environ: dict[bytes, bytes] = dict(getattr(os.environ, "_data", {}))

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self._noted or os.getpid() != self._pid:
            return
        now, before = dict(getattr(os.environ, "_data", {})), self._environ  # undecoded, since that is fast
        if now != before:
            self._environ = now
            for variable in now.keys() | before.keys():
                if now.get(variable) != before.get(variable):
                    self._write_note("=" + os.fsdecode(variable))
        if not self._is_in_added_folder(name.partition(".")[0]):
            self._write_note(name)

    def _is_in_added_folder(self, top: str) -> bool:
        """Whether the script has added a folder to `sys.path` in which a standby would not look for this package."""
        added = [place for place in sys.path if place not in self._path]
        finder = sys.modules["_frozen_importlib_external"].PathFinder
        return bool(added) and finder.find_spec(top, added) is not None

    def _write_note(self, line: str) -> None:
        if line not in self._noted:
            self._noted.add(line)
            with contextlib.suppress(
                OSError, ValueError
            ):  # the disk is full, or the script has closed the file
                self._file.write(line + "\n")


def _is_installed(module: str) -> bool:
    """Whether a module belongs to an installed package, and not to the script, an editable install or Python itself."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return False
    places = [spec.origin or "", *(spec.submodule_search_locations or ())] if spec is not None else []
    return any(place.startswith(tuple(f"{home}/" for home in _package_folders())) for place in places)


def _import_all(
    preload: "list[str]",
    seen: "list[str]",
    left_out: "list[str]",
    before: "Mapping[str, str]",
    code: "Versions",
    channel: socket.socket,
) -> "dict[str, str] | None":
    """Import modules until one should not be in a standby; what to tell the agent of that one, or None.

    Of an earlier worker's notes (`seen`) the modules that are installed are imported while the agent has nothing to
    say; a failure is none of ours, since the script has seen it too. `code` gets what was there to be imported.
    """
    for module in preload:
        _, why = _import(module, set())
        code.update({**_list_own_files(), **code})
        if why is not None:
            return {"left_out": module, "why": why}
    changed: set[str] = set()  # by the script itself, when it imported what comes next
    for line in seen:
        if select.select([channel], [], [], 0)[0]:
            break  # it is taken: the script imports what it needs
        if line.startswith("="):
            name = line[1:]
            if os.environ.get(name) == before.get(name):  # not by a module
                changed.add(name)
        elif line and line not in sys.modules and _is_installed(line):
            if any(f"{line}.".startswith(f"{out}.") for out in left_out):
                continue
            failed, why = _import(line, changed)
            if why is not None and not failed:
                return {"left_out": line, "why": why}
    code.update({**_list_own_files(), **code})
    return None


def _import(module: str, changed: "set[str]") -> "tuple[bool, str | None]":
    """Import a module; whether it failed, and why no standby should import it, or None.

    `changed` are variables that have other values when the script imports it.
    """
    kind = os.environ.__class__
    asked: list[str] = []

    class Watched(kind):  # type: ignore[misc, valid-type]
        def __getitem__(self, name: str) -> str:
            if belongs_to_round(name) or name in changed:
                asked.append(name)
            value: str = super().__getitem__(name)
            return value

    os.environ.__class__ = Watched  # the object stays, since modules keep references to it
    try:
        importlib.import_module(module)
    except KeyboardInterrupt:  # it has been taken: who starts over would lose it
        raise
    except BaseException as error:
        return True, f"{type(error).__name__}: {error}"[:1000]
    finally:
        os.environ.__class__ = kind
    if asked:
        names = ", ".join(sorted(set(asked)))
        set_first = " what the script sets first," if changed.issuperset(asked) else ""
        return False, f"it reads{set_first} {names} while it is imported"
    if _holds_gpu():
        return False, "it takes a GPU while it is imported"
    return False, None


def _holds_gpu() -> bool:
    """Whether this process has a GPU open, or torch has started CUDA."""
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(GPU_FILES):
                return True
    torch: Any = sys.modules.get("torch")
    return bool(torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized())


# -- becoming a worker --------------------------------------------------------------------------------------------


def _rename_thread(name: "str | None") -> str:
    """Give the main thread a name, unless it is None; returns the one it had."""
    with open("/proc/self/comm", "r+", encoding="utf-8", errors="surrogateescape") as file:
        before = file.read().removesuffix("\n")
        if name is not None:
            file.write(name)
    return before


def _receive_round(channel: socket.socket) -> "dict[str, str]":
    """The worker's environment; its stdout and stderr become those of this process. Without an agent that ends."""
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 3)
    if not descriptors:
        os._exit(1)
    for target, descriptor in enumerate(descriptors[:2], 1):
        os.dup2(descriptor, target)
        os.close(descriptor)
    with open(descriptors[2], "rb") as file:
        environ: dict[str, str] = json.load(file)
    return environ
