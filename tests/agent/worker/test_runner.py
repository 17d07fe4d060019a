"""A script cannot tell the runner from the interpreter, and what ends it is recorded."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from hetagent.worker import runner

RUNNER = os.path.abspath(runner.__file__)

DESCRIBE = """
import json, os, pickle, sys

class Local:
    pass

main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "path": sys.path,
    "names": list(main.__dict__)[:9],
    "file": main.__dict__.get("__file__", "unset"),
    "doc": main.__doc__,
    "package": main.__package__,
    "cached": main.__dict__.get("__cached__", "unset"),
    "spec": main.__spec__ and [main.__spec__.name, main.__spec__.origin, main.__spec__.parent],
    "loader": type(main.__loader__).__name__,
    "annotations": main.__dict__.get("__annotations__", "unset"),
    "builtins": type(__builtins__).__name__,
    "same": main.__dict__ is globals(),
    "code": sys._getframe().f_code.co_filename,
    "pickled": type(pickle.loads(pickle.dumps(Local()))) is Local,
    "unbuffered": sys.stdout.write_through,
    "modules": sorted(sys.modules.keys() - {"faulthandler"}),
    "future": bool(compile("x: y", "", "exec", flags=0).co_flags & 0x1000000),
}))
"""


Ran = subprocess.CompletedProcess[str]


def run(
    *args: str, runner: bool, cwd: Path, flags: tuple[str, ...] = (), error_file: Path | None = None
) -> Ran:
    """Run a script with the interpreter alone or through the runner."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if error_file is not None:
        environ["TORCHELASTIC_ERROR_FILE"] = str(error_file)
    command = [sys.executable, *flags, "-u", *([RUNNER] if runner else []), *args]
    return subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=30, check=False
    )


def both(*args: str, cwd: Path, flags: tuple[str, ...] = ()) -> tuple[Ran, Ran]:
    """Run it both ways."""
    return run(*args, runner=False, cwd=cwd, flags=flags), run(*args, runner=True, cwd=cwd, flags=flags)


def assert_alike(*args: str, cwd: Path, flags: tuple[str, ...] = ()) -> Ran:
    plain, ran = both(*args, cwd=cwd, flags=flags)
    assert (ran.returncode, ran.stdout, ran.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    return ran


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the same program as a script, a package, a directory and a zip file."""
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for path in (tmp_path / "describe.py", package / "mod.py", package / "__main__.py"):
        path.write_text(DESCRIBE)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "link.py").symlink_to("../describe.py")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as file:
        file.writestr("__main__.py", DESCRIBE)
    return tmp_path


@pytest.mark.parametrize(
    "args",
    [
        ("describe.py", "-m", "--x", "1"),
        ("./describe.py",),
        ("sub/../describe.py",),
        ("sub/link.py", ""),
        ("-m", "pkg.mod", "a"),
        ("-m", "pkg"),
        ("pkg",),
        ("app.zip", "a"),
    ],
    ids=" ".join,
)
def test_the_script_finds_itself_as_under_plain_python(place: Path, args: tuple[str, ...]) -> None:
    ran = assert_alike(*args, cwd=place)
    assert ran.returncode == 0, ran.stderr


def test_an_absolute_path_and_safe_path(place: Path) -> None:
    assert_alike(str(place / "describe.py"), cwd=place)
    assert_alike("describe.py", cwd=place, flags=("-P",))
    assert_alike("pkg", cwd=place, flags=("-P",))


def test_compiled_scripts(place: Path) -> None:
    import py_compile

    py_compile.compile(str(place / "describe.py"), cfile=str(place / "describe.pyc"), doraise=True)
    assert assert_alike("describe.pyc", cwd=place).returncode == 0


ENDINGS = {
    "nothing": "x = 1",
    "exception": "def f():\n    raise ValueError('über')\nf()",
    "chained": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('b') from e",
    "group": "raise ExceptionGroup('several', [ValueError(1), TypeError(2)])",
    "syntax": "x = = 1",
    "deep syntax": "exec('x = = 1')",
    "future": "from __future__ import annotations\nx: undefined_name = 1\nprint(__annotations__)",
    "import": "import there_is_no_such_module",
    "encoding": "# coding: latin-1\nprint(ascii('\xe9'))",
    "exit number": "import sys; sys.exit(3)",
    "exit text": "import sys; sys.exit('no data')",
    "exit none": "import sys; sys.exit()",
    "exit in function": "def f():\n    raise SystemExit(4)\nf()",
    "os exit": "import os; print('x'); os._exit(5)",
    "interrupt": "raise KeyboardInterrupt",
    "atexit": "import atexit; atexit.register(print, 'bye'); 1 / 0",
    "thread": "import threading\nthreading.Timer(0.05, print, ['t']).start()\n1 / 0",
    "own hook": "import sys\nsys.excepthook = lambda t, v, tb: print(t, v, tb.tb_lineno, tb.tb_next)\n1 / 0",
    "unprintable": "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
    "deleted main": "import sys\ndel sys.modules['__main__']\n1 / 0",
    "fork": "import os\npid = os.fork()\nif not pid: raise ValueError('child')\nos.waitpid(pid, 0)",
    "finalizer": "class D:\n    def __del__(self): print('del', __name__)\nd = D()",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "warning": "import warnings\nwarnings.warn('old', DeprecationWarning)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_looks_as_under_plain_python(tmp_path: Path, ending: str) -> None:
    (tmp_path / "s.py").write_text(ENDINGS[ending], encoding="latin-1" if ending == "encoding" else "utf-8")
    assert_alike("s.py", cwd=tmp_path)


def test_a_module_that_fails_or_is_not_there_looks_as_under_plain_python(place: Path) -> None:
    (place / "pkg" / "bad.py").write_text("1 / 0")
    for module in ("pkg.bad", "pkg.absent", "absent"):
        assert assert_alike("-m", module, cwd=place).returncode == 1
    (place / "sub" / "empty").mkdir()
    assert assert_alike("sub/empty", cwd=place).returncode == 1


def record_of(tmp_path: Path, source: str) -> dict[str, Any] | None:
    (tmp_path / "s.py").write_text(source)
    error_file = tmp_path / "error.json"
    run("s.py", runner=True, cwd=tmp_path, error_file=error_file)
    return json.loads(error_file.read_text())["message"] if error_file.exists() else None


def test_an_exception_is_recorded_in_torchs_format(tmp_path: Path) -> None:
    record = record_of(tmp_path, "def f():\n    raise ValueError('x')\nf()")
    assert record is not None
    assert record["message"] == "ValueError: x"
    stack = record["extraInfo"]["py_callstack"]
    assert stack.startswith(
        f'Traceback (most recent call last):\n  File "{tmp_path}/s.py", line 3, in <module>'
    )
    assert stack.endswith("ValueError: x\n")
    assert "runner.py" not in stack
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(tmp_path / "error.json"))
    assert failure.message == record
    assert failure.timestamp > 1_700_000_000


def test_the_record_is_as_old_as_the_exception(tmp_path: Path) -> None:
    """A worker saves a snapshot before it ends, and all that time its round stands still."""
    record_of(
        tmp_path,
        "import sys, time, types\n"
        "snapshots = sys.modules['hetagent.snapshots'] = types.ModuleType('snapshots')\n"
        "snapshots.save_now = lambda ends: (time.sleep(0.5), open('saved', 'x'))\n"
        "1 / 0",
    )
    assert (tmp_path / "saved").stat().st_mtime - (tmp_path / "error.json").stat().st_mtime > 0.4


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import sys; sys.exit('no data')", "SystemExit: no data"),
        ("import sys; sys.exit()", None),
        ("raise KeyboardInterrupt", None),
        ("pass", None),
        ("import argparse; argparse.ArgumentParser().exit(0)", None),
        ("import sys; sys.exit(2)", None),
        ("x = = 1", "SyntaxError: invalid syntax (s.py, line 1)"),
        ("import os\nif not os.fork(): raise ValueError('child')\nos.wait()", None),
    ],
)
def test_what_is_recorded(tmp_path: Path, source: str, message: str | None) -> None:
    record = record_of(tmp_path, source)
    assert (record and record["message"]) == message


def test_what_torchs_record_wrote_stays(tmp_path: Path) -> None:
    written = '{"message": "by @record"}'
    (tmp_path / "error.json").write_text(written)
    record_of(tmp_path, "1 / 0")
    record = json.loads((tmp_path / "error.json").read_text())
    assert record["message"] == "by @record"
    assert time.time() - 60 < record["raised_at"] < time.time(), (
        "that is what tells whether a worker does not end"
    )


def test_a_crash_prints_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import ctypes\nctypes.string_at(0)")
    ran = run("s.py", runner=True, cwd=tmp_path)
    assert ran.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in ran.stderr
    assert 's.py", line 2' in ran.stderr


SPAWN = """
import multiprocessing
class Item:
    def __init__(self, n): self.n = n
def work(item, queue): queue.put((type(item).__module__, item.n, __name__))
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    queue = context.Queue()
    process = context.Process(target=work, args=(Item(7), queue))
    process.start()
    print(queue.get(timeout=20))
    process.join()
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@pytest.mark.parametrize("args", [("s.py",), ("-m", "s")], ids=" ".join)
def test_children_of_multiprocessing(tmp_path: Path, method: str, args: tuple[str, ...]) -> None:
    (tmp_path / "s.py").write_text(SPAWN.format(method=method))
    ran = assert_alike(*args, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ", 7, " in ran.stdout


def test_it_starts_no_slower(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import sys; print(*sorted(sys.modules))")
    plain, ran = both("s.py", cwd=tmp_path)
    assert set(ran.stdout.split()) - set(plain.stdout.split()) == {"faulthandler"}


@pytest.mark.parametrize(
    ("script", "permanent"),
    [
        ("x = (\n", True),
        ('"""Doc."""\nimport os\nos.environ["X"] = "1"\nsys = 3\nimport no_such_module\n', True),
        ("import sys\nsys.path.insert(0, sys.argv[0])\nfrom os import (\n  path,\n  nothing,\n)\n", True),
        ("from os import nothing\n", True),
        ("import broken\n", True),
        ("import halfway\n", True),
        ("import os\nprint(1)\nimport no_such_module\n", True),
        ("def f():\n  import no_such_module\nf()\n", False),
        ("try:\n  import no_such_module\nexcept ImportError:\n  raise\n", False),
        ("import os\nraise ImportError('mine')\n", False),
        ("import os\neval('(')\n", False),
        ("import raises\n", False),
        ("raise SystemExit('text')\n", False),
        ("import os\nfor i in range(3):\n  print(no_such_name)\n", True),
        ("def f():\n  print(no_such_name)\nf()\n", False),
        ("import names\n", False),
    ],
)
def test_a_script_that_ends_before_it_did_anything_is_hopeless(
    tmp_path: Path, script: str, permanent: bool
) -> None:
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "halfway.py").write_text("print(1)\nimport no_such_module\n")
    (tmp_path / "raises.py").write_text("raise ValueError\n")
    (tmp_path / "names.py").write_text("no_such_name\n")
    for words in (["script.py"], ["-m", "script"]):
        record = tmp_path / f"error{len(words)}.json"
        assert run(*words, runner=True, cwd=tmp_path, error_file=record).returncode == 1
        assert json.loads(record.read_text()).get("permanent", False) is permanent, words


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["nowhere.py"], 2, "can't open file '{folder}/nowhere.py': [Errno 2] No such file or directory"),
        (["-m", "nowhere"], 1, "No module named nowhere"),
        (["train.py", "--lr", "1"], 2, "train.py: error: unrecognized arguments: --lr 1"),
    ],
    ids=["script", "module", "arguments"],
)
def test_a_start_that_cannot_succeed_is_hopeless_and_says_why(
    tmp_path: Path, words: list[str], status: int, message: str
) -> None:
    (tmp_path / "train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    assert assert_alike(*words, cwd=tmp_path).returncode == status
    record = tmp_path / "error.json"
    run(*words, runner=True, cwd=tmp_path, error_file=record)
    told = json.loads(record.read_text())
    assert told["permanent"] is True
    assert message.format(folder=tmp_path) in told["message"]["message"]
