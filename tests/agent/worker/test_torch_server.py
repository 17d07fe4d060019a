"""A worker opens torch's server for its agent, and the script notices nothing of it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetagent.monitor.torch_client import TorchServerQuery
from hetagent.monitor.watcher import torch_server_env
from hetagent.worker import runner

RUNNER = os.path.abspath(runner.__file__)

LOOK = """
import gc, os, signal, sys

class NotComparable:
    def find_spec(self, name, path=None, target=None):
        return None

    def __eq__(self, other):
        raise TypeError("not comparable")

sys.meta_path.insert(0, NotComparable())
print(sorted(name for name in os.environ if name.startswith("HET_")))
before = sorted(os.listdir("/proc/self/fd"))
import torch.distributed
module = sys.modules["torch.distributed"]
print(module.__loader__ is module.__spec__.loader, type(module.__loader__).__name__)
print([getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path])
print(sorted(os.listdir("/proc/self/fd")) == before, gc.isenabled())
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(sorted(name for name in sys.modules if name in ("torch_server", "waiting", "runner")))
"""

FAKE = "import os, sys\nprint('imported', __name__, type(__spec__.loader).__name__)\n"


def start(script: Path, socket: Path | None, *arguments: str) -> "subprocess.Popen[str]":
    """Start a script as a worker, watched or not."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HET_"))}
    if socket is not None:
        environ |= torch_server_env(str(socket))
    command = [sys.executable, "-u", RUNNER, str(script), *arguments]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(script: Path, socket: Path | None, *arguments: str) -> tuple[int, str, str]:
    """Run it; its exit status, stdout and stderr."""
    with start(script, socket, *arguments) as worker:
        out, err = worker.communicate(timeout=60)
    return worker.returncode, out, err


SERVED = """
import atexit, ctypes, http.client, os, socket, sys, time
path = sys.argv[0] + ".sock"

class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)

pid = os.fork()  # a child before the import, which forgets about it
if pid == 0:
    import torch.distributed
    print("child", os.path.exists(path), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
import torch.distributed
connection = Connection("worker")
connection.request("POST", "/handler/dump_traceback")
print("this line", "script.py" in connection.getresponse().read().decode(), file=sys.stderr)
threads = {name: open(f"/proc/self/task/{name}/status").read() for name in os.listdir("/proc/self/task")}
ours = [text for text in threads.values() if "pt_workerserver" in text]
term = 1 << (15 - 1)
print(len(ours) > 0, all(int(text.split("SigBlk:")[1].split()[0], 16) & term for text in ours), file=sys.stderr)
pid = os.fork()
if pid == 0:
    sys.exit(0)  # runs what is registered with atexit
os.waitpid(pid, 0)
print(os.path.exists(path), file=sys.stderr)

def end():
    open(sys.argv[0] + ".ends", "w").close()
    ctypes.PyDLL(None).usleep(300_000)  # keeps the GIL, so that what is asked now waits for it

atexit.register(end)
"""


def test_the_script_sees_nothing_of_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LOOK)
    plain, watched = run(script, None), run(script, tmp_path / "s")
    assert watched == plain
    assert watched[0] == 0
    assert watched[1].startswith("[]\nTrue SourceFileLoader\n")


COLLECTS = """
import gc, os, socket, sys, threading
import torch.distributed
path = sys.argv[0] + ".sock"
finalized = []

class Garbage:
    def __init__(self, number):
        self.me, self.file = self, os.fdopen(os.dup2(os.open(os.devnull, os.O_WRONLY), number), "wb")

    def __del__(self):
        finalized.append(threading.get_ident())

def ask(what):
    asked = socket.socket(socket.AF_UNIX)
    asked.connect(path)
    asked.sendall(f"POST /handler/{what} HTTP/1.1\\r\\nConnection: close\\r\\nContent-Length: 0\\r\\n\\r\\n".encode())
    answer = b""
    while data := asked.recv(1 << 16):
        answer += data
    return b" 200 OK" in answer

gc.collect()
gc.disable()
for number in range(3, 40):
    try:
        os.fstat(number)
    except OSError:
        Garbage(number)
pid = os.fork()
if pid == 0:
    asked = [ask("dump_traceback") for _ in range(50)]
    os._exit(0 if all(asked) and ask("ping") else 1)
gc.set_threshold(1)
gc.enable()
status = os.waitpid(pid, 0)[1]
gc.disable()
print(status, threading.get_ident() not in finalized, len(finalized) > 0)
"""


def test_garbage_that_is_collected_in_a_thread_of_the_server_does_not_harm_it(tmp_path: Path) -> None:
    """It closes files of the script by numbers that mean others there: the server's socket, and what it writes."""
    script = tmp_path / "script.py"
    script.write_text(COLLECTS)
    status, out, err = run(script, Path(f"{script}.sock"))
    assert (status, err) == (0, "")
    assert out == "0 True True\n"


@pytest.mark.long
def test_it_serves_until_the_worker_ends_and_logs_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SERVED)
    with start(script, Path(f"{script}.sock")) as worker:
        while not Path(f"{script}.ends").exists():
            assert worker.poll() is None
            time.sleep(0.001)
        asked = [TorchServerQuery(f"{script}.sock", "dump_traceback") for _ in range(4)]
        out, err = worker.communicate(timeout=60)
    assert out == "child False\n"
    assert err == "this line True\nTrue True\nTrue\n"
    assert worker.returncode == 0
    for one in asked:
        assert b"Thread" in (one.read_answer() or b"")
        one.close()
    assert not Path(f"{script}.sock").exists()


@pytest.mark.parametrize("socket", ["s", "no/such/folder/s", "x" * 200])
def test_a_torch_without_such_a_server_is_imported_as_ever(tmp_path: Path, socket: str) -> None:
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text(FAKE)
    script = tmp_path / "script.py"
    script.write_text("import torch\nimport torch.distributed\nimport colorsys\nprint('done')\n")
    plain, watched = run(script, None), run(script, tmp_path / socket)
    assert watched == plain
    assert watched[1].endswith("imported torch.distributed SourceFileLoader\ndone\n")
