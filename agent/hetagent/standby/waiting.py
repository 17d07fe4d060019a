"""The waiting part of a standby: a worker's process that was started before its round was known.

A standby is started with the command line of its worker, and shows another one until it is a worker. The runner calls
`wait` when it has done all that it can do before the script runs (see worker/runner.py). Here the standby imports what
it was told to, says that it is ready, and waits on a socket for what only the round knows. When `wait` returns, the
process is a worker: nothing of the standby is left but the imported modules. `begin` has a worker note what it imports.

Messages are JSON, each after its length in four bytes (big-endian). The first two may be repeated, with more modules:

    agent -> standby    {"preload": [MODULE, ...], "seen": NOTES, "paced": BOOL}
    standby -> agent    {"ready": true}, or {"left_out": MODULE, "why": TEXT} if it must not be taken
    agent -> standby    {"environ": {NAME: VALUE}}, with two descriptors: the worker's stdout and stderr
    standby -> agent    {"taken": true}, with {"anew": TEXT} if what it has imported is of no use, and why

NOTES are what an earlier worker has noted, see `begin`. The standby ends when the agent closes its end. Standard
library only, imported in a bare interpreter.
"""

import contextlib
import importlib.util
import json
import os
import select
import signal
import socket
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import FrameType
    from typing import Any, NoReturn, TextIO

CHANNEL = "HET_STANDBY_FD"
"""The descriptor of the standby's end of the socket."""

IMPORTS_FILE = "HET_IMPORTS_FILE"
"""Where a worker notes what it imports."""

NAME = "het-standby"
"""What `ps -o comm` and `top` show of a standby that is ready."""

TITLE = "hetagent: standby for "
"""What `ps` shows instead of the command line until the standby is a worker; the name of its script follows."""

STEP_S = 0.01
"""A paced standby uses the CPU for this long, then rests for as long (seconds)."""

OUTPUT_LIMIT = 65_536
"""How much of what the imports printed is passed on, of stdout and of stderr (bytes)."""

ROUND_NAMES = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "ROLE_NAME",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    }
)
ROUND_PREFIXES = ("TORCHELASTIC_", "HET_")

SITES = ("/site-packages", "/dist-packages")
"""How the names of folders end into which packages are installed."""

INSTALLED = (".dist-info", ".egg-info", ".egg-link", ".pth")
"""How the names end by which such a folder says what is installed."""

GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


def belongs_to_round(name: str) -> bool:
    """Whether an environment variable is set for a round; all others are the same in every round."""
    return name in ROUND_NAMES or name.startswith(ROUND_PREFIXES)


def wait(started_as: "list[str]") -> "Callable[[str], NoReturn] | None":
    """Import what the agent says, and return once this process is a worker of a round.

    Args:
        started_as: the command line of this process, with which it can begin anew.

    Returns:
        begins anew, without what was imported, after an exception of this kind; None if nothing was but what somebody
        has named.
    """
    channel = socket.socket(fileno=int(os.environ.pop(CHANNEL)))
    os.set_inheritable(channel.fileno(), False)
    # These are for /proc; a module that copies the environment asks for none of them.
    marks = list(filter(belongs_to_round, os.environ))
    for name in marks:
        del os.environ[name]
    own_name = _renamed(None)
    title = f"{TITLE}{os.path.basename(sys.argv[0])}".encode(errors="surrogateescape")
    own_title = _shown(title)
    order, streams = _receive(channel)
    before = dict(os.environ)
    script, path = os.path.abspath(sys.argv[0]), list(sys.path)
    code, files = _code(script, path), dict[str, object]()
    seen, problem = False, None
    while "environ" not in order:
        seen = seen or len(order["seen"]) > 1
        with _Throttle(channel, order["paced"]):
            problem = _import_all(order["preload"], order["seen"], before, files, channel)
        if problem is None:
            _renamed(NAME)
        _send(channel, problem or {"ready": True})
        # A problem ends the process, unless the agent has just taken it for a round.
        order, streams = _receive(channel)
        _renamed(own_name)
    _shown(own_title, instead_of=title)
    _take_streams(streams)
    if problem is not None:
        _begin_anew(started_as, order["environ"])
    imported = _changes(before, os.environ)
    anew = _changed({**code, **files}, {**_code(script, path), **_versions(files)})
    if not _are_shown(marks):  # a module has overwritten it, as programs do that rename themselves
        anew = "a module has overwritten its environment"
    if anew:
        _send(channel, {"taken": True, "anew": anew})
        _begin_anew(started_as, order["environ"])
    os.environ.clear()
    os.environ.update(order["environ"])
    for name, value in imported.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _send(channel, {"taken": True})
    channel.close()

    def begin_again(kind: str) -> "NoReturn":
        what = f"{kind} while the script imports, after --preload auto imported ahead"
        print(f"hetagent: {what}: starting over without that", file=sys.stderr, flush=True)
        _begin_anew(started_as, order["environ"])

    return begin_again if seen else None


# -- whether a plain start would import the same ------------------------------------------------------------------


def _code(script: str, path: "list[str]") -> "dict[str, object]":
    """What a plain start goes by, and which version of it is there: Python, the script, `sys.path`, packages.

    Not whether a folder's content has changed: scripts write checkpoints and logs beside them.

    Args:
        script: the file or folder that is run; with `-m` there is no such file.
        path: `sys.path` as it was before anything was imported.
    """
    real = os.path.realpath(script)
    code: dict[str, object] = {script: (real, _version(real)), **_versions([sys.executable, *path])}
    for place in path:
        if place.endswith(SITES):
            with contextlib.suppress(OSError), os.scandir(place) as entries:
                installed = [entry for entry in entries if entry.name.endswith(INSTALLED)]
                code[f"what is installed in {place}"] = sorted(
                    (entry.name, entry.stat().st_mtime_ns) for entry in installed
                )
    return code


def _note_files(files: "dict[str, object]") -> None:
    """Add the files of loaded modules that are part neither of Python nor of what is installed, and their versions."""
    sites = [place for place in sys.path if place.endswith(SITES)]
    homes = tuple(f"{home}/" for home in (os.path.dirname(os.__file__), *sites))
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get(
            "__file__"
        )  # an attribute may be made when it is asked for
        if (
            isinstance(file, str)
            and file.startswith("/")
            and not file.startswith(homes)
            and file not in files
        ):
            files[file] = _version(file)


def _versions(paths: "Iterable[str]") -> "dict[str, object]":
    return {path: _version(path) for path in paths}


def _version(path: str) -> "tuple[int, ...] | None":
    """Which file or folder it is, and of a file, of when and how large; None: there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    which = (status.st_dev, status.st_ino)
    return which if stat.S_ISDIR(status.st_mode) else (*which, status.st_mtime_ns, status.st_size)


def _changed(before: "dict[str, object]", now: "dict[str, object]") -> str:
    """What is another one now, for a person; empty if nothing is."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return f"{names[0]} has changed since it started" if names else ""


# -- importing ----------------------------------------------------------------------------------------------------


def begin() -> None:
    """From now on, append to a file what is imported, for the next worker in this one's place.

    Its first line is the version of the script; if that is another one now, it begins anew. The others are in the order
    of events, each there once: the name of a module that was looked for, or `=` and a variable's name if its value is
    not what it was at the start.
    """
    path = os.environ.pop(IMPORTS_FILE)
    with contextlib.suppress(OSError):  # the folder is gone: somebody has cleaned up TMPDIR
        file = open(path, "a+", buffering=1, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
        file.seek(0)
        head, noted = _head(os.path.abspath(sys.argv[0])), file.read().split("\n")
        if noted[0] != head:
            file.truncate(0)
            file.write(f"{head}\n")
            noted = []
        sys.meta_path.insert(0, _Noting(file, set(noted)))


def _head(script: str) -> str:
    """The first line of notes on a script."""
    return f"# {_version(os.path.realpath(script))}"


class _Noting:
    """A finder that finds nothing.

    Args:
        file: to which it adds.
        noted: the lines of it.
    """

    def __init__(self, file: "TextIO", noted: "set[str]") -> None:
        self._file = file
        self._noted = noted
        self._pid = os.getpid()
        self._path = list(sys.path)
        self._environ = self._variables()

    @staticmethod
    def _variables() -> "dict[bytes, bytes]":
        """The environment, as fast as can be: this is asked for each module."""
        data: dict[bytes, bytes] = getattr(os.environ, "_data", {})
        return dict(data)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self._noted or os.getpid() != self._pid:
            return
        now, before = self._variables(), self._environ
        if now != before:
            self._environ = now
            for variable in now.keys() | before.keys():
                if now.get(variable) != before.get(variable):
                    self._note("=" + os.fsdecode(variable))
        if not self._is_elsewhere(name.partition(".")[0]):
            self._note(name)

    def _is_elsewhere(self, top: str) -> bool:
        """Whether the script has added a folder to `sys.path` in which a standby would not look for this package."""
        added = [place for place in sys.path if place not in self._path]
        finder = sys.modules["_frozen_importlib_external"].PathFinder
        return bool(added) and finder.find_spec(top, added) is not None

    def _note(self, line: str) -> None:
        if line not in self._noted:
            self._noted.add(line)
            with contextlib.suppress(
                OSError, ValueError
            ):  # the disk is full, or the script has closed the file
                self._file.write(line + "\n")


def _is_installed(module: str) -> bool:
    """Whether a module belongs to an installed package, and not to the script, an editable install or Python itself."""
    import sysconfig

    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = [spec.origin or "", *(spec.submodule_search_locations or ())]
    homes = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    homes.update(path for path in sys.path if path.endswith(("/site-packages", "/dist-packages")))
    return any(place.startswith(tuple(home + "/" for home in homes)) for place in places)


def _import_all(
    preload: "list[str]",
    seen: "list[str]",
    before: "Mapping[str, str]",
    files: "dict[str, object]",
    channel: socket.socket,
) -> "dict[str, str] | None":
    """Import modules until one should not be in a standby; what to tell the agent of that one, or None.

    Args:
        preload: to be imported.
        seen: an earlier worker's notes. The modules that are installed are to be imported while the agent has nothing
            to say; a failure is none of ours, since the script has seen it too.
        before: the environment at the start.
        files: see `_note_files`.
        channel: to the agent.
    """
    for module in preload:
        _, why = _import(module, set())
        _note_files(files)
        if why is not None:
            return {"left_out": module, "why": why}
    if seen and seen[0] != _head(os.path.abspath(sys.argv[0])):
        return None
    changed: set[str] = set()  # by the script itself, when it imported what comes next
    for line in seen[1:]:
        if select.select([channel], [], [], 0)[0]:
            break  # it is taken: the script imports what it needs
        if line.startswith("="):
            name = line[1:]
            if os.environ.get(name) == before.get(name):  # not by a module
                changed.add(name)
        elif line not in sys.modules and _is_installed(line):
            failed, why = _import(line, changed)
            if why is not None and not failed:
                return {"left_out": line, "why": why}
    _note_files(files)
    return None


def _import(module: str, changed: "set[str]") -> "tuple[bool, str | None]":
    """Import a module; whether it failed, and why no standby should import it, or None.

    Args:
        module: its name.
        changed: variables that have other values when the script imports it.
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
    except BaseException as error:
        return True, f"{type(error).__name__}: {error}"
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
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(GPU_FILES):
                return True
        except OSError:
            continue
    torch: Any = sys.modules.get("torch")
    return bool(torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized())


class _Throttle:
    """While it lasts, the main thread rests half of the time, until the agent has something to say.

    It can be undone at any moment, without privileges; a niceness or a scheduling class cannot.
    """

    def __init__(self, channel: socket.socket, paced: bool) -> None:
        self._channel = channel
        self._paced = paced
        self._previous: Any = None

    def __enter__(self) -> None:
        if self._paced:
            self._previous = signal.signal(signal.SIGPROF, self._rest)
            signal.siginterrupt(signal.SIGPROF, False)  # libraries in C need not expect EINTR
            signal.setitimer(signal.ITIMER_PROF, STEP_S, STEP_S)

    def __exit__(self, *_: object) -> None:
        if self._paced:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, self._previous)

    def _rest(self, signum: int, frame: "FrameType | None") -> None:
        if select.select([self._channel], [], [], STEP_S)[0]:
            signal.setitimer(signal.ITIMER_PROF, 0)


def _changes(before: "Mapping[str, str]", now: "Mapping[str, str]") -> "dict[str, str | None]":
    """What modules have changed in the environment while they were imported; None: they removed it."""
    changed: dict[str, str | None] = {name: value for name, value in now.items() if before.get(name) != value}
    return dict.fromkeys(before.keys() - now.keys()) | changed


# -- becoming a worker --------------------------------------------------------------------------------------------


def _take_streams(streams: "list[int]") -> None:
    """Make these descriptors stdout and stderr, and pass on what the imports have printed."""
    for descriptor, target in zip(streams, (1, 2), strict=True):
        printed = os.pread(target, OUTPUT_LIMIT, 0)
        os.dup2(descriptor, target)
        os.close(descriptor)
        while printed:
            printed = printed[os.write(target, printed) :]


def _begin_anew(started_as: "list[str]", environ: "dict[str, str]") -> "NoReturn":
    """Become the worker by a plain start in this very process: it must not run with what it has imported."""
    os.execvpe(started_as[0], started_as, environ)  # /proc/self/cmdline may be overwritten


def _are_shown(marks: "list[str]") -> bool:
    """Whether the environment that /proc shows still has the variables by which workers are found."""
    try:
        with open("/proc/self/environ", "rb") as file:
            shown = b"\0" + file.read()
    except OSError:
        return False
    return all(f"\0{name}=".encode() in shown for name in marks)


def _shown(title: bytes, instead_of: bytes = b"") -> bytes:
    """Have /proc show this as the command line if it can be changed; returns what it has shown, else nothing.

    Args:
        instead_of: only if this is how it begins now: a module that was imported may have changed it.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            start, end = map(int, file.read().rpartition(b")")[2].split()[45:47])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            before = memory.read(end - start)
            if before.startswith(instead_of):
                memory.seek(start)
                memory.write(title[: len(before) - 1].ljust(len(before), b"\0"))
            return before
    except (OSError, ValueError):  # forbidden here, or no longer where it was
        return b""


def _renamed(name: "str | None") -> str:
    """Give the main thread a name, unless it is None; returns the one it had."""
    with open("/proc/self/comm", "r+", encoding="utf-8", errors="surrogateescape") as file:
        before = file.read().removesuffix("\n")
        if name is not None:
            file.write(name)
    return before


# -- messages -----------------------------------------------------------------------------------------------------


def _receive(channel: socket.socket) -> "tuple[Any, list[int]]":
    """The next message and the descriptors with it; without an agent the process ends."""
    header, descriptors, _, _ = socket.recv_fds(channel, 4, 2, socket.MSG_WAITALL)
    length = int.from_bytes(header, "big")
    body = channel.recv(length, socket.MSG_WAITALL) if len(header) == 4 else b""
    if len(header) < 4 or len(body) < length:
        os._exit(1)
    return json.loads(body), descriptors


def _send(channel: socket.socket, message: object) -> None:
    """Send a message; an agent that does not listen any more has taken this standby before it was ready."""
    body = json.dumps(message).encode()
    with contextlib.suppress(OSError):
        channel.sendall(len(body).to_bytes(4, "big") + body)
