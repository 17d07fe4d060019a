"""`docker-compose up` for real, with faults while it trains: `make compose-test`. Takes some ten minutes.

Uses the Docker engine that there is. Where there is none but its programs are (Debian: docker.io docker-compose
debootstrap iptables iproute2) and this is root, it starts one of its own: in a folder of its own, its containers in
a network namespace of their own, so that the machine's firewall stays as it is. Where no registry can be reached,
it makes the base image with debootstrap. All of that is taken down in the end.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

ROOT = Path(__file__).parents[2]
BASE = "python:3.11-slim-bookworm"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
IMAGES = ("hetrdzv-server", "hetrdzv-digits", "hetrdzv-etcd")
PROJECT = "hetrdzv-try"
AGENTS = ("big", "small-1", "small-2")
EPOCHS = 90
ACCURACY = 0.95
SERVER_MB = 200
LEASE_S = 5
TOKEN = "/run/hetrdzv/token"
NAMESPACE = "hetrdzv-try"
INDEX_PORT = "8765"  # the same each time, or Docker would not use what it has built

_T = TypeVar("_T")
_began = time.monotonic()


def say(text: str = "") -> None:
    """Print a part of the transcript, with seconds since the start."""
    print(
        re.sub(r"^", f"[{time.monotonic() - _began:5.0f} s] ", text.rstrip(), flags=re.MULTILINE), flush=True
    )


def fail(why: str) -> NoReturn:
    """End the try."""
    raise SystemExit(f"try: {why}")


def wait_for(what: str, found: Callable[[], _T | None], timeout_s: float = 240.0, pause_s: float = 0.5) -> _T:
    """Wait until something is found.

    Raises:
        SystemExit: it was not, within `timeout_s` seconds.
    """
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if result := found():
            return result
        time.sleep(pause_s)
    fail(f"{what} did not happen within {timeout_s:g} s")


# -- the engine ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def engine(home: Path, command: Sequence[str]) -> Iterator[None]:
    """A dockerd of our own, for the length of a block; everything in it is told by `DOCKER_HOST`.

    Args:
        home: where it keeps everything.
        command: what dockerd is started with, beside its places.
    """
    sock, log = home / "sock", home / "dockerd.log"
    places = ["--data-root", home / "root", "--exec-root", home / "exec", "--pidfile", home / "pid"]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, *map(str, places), "--host", f"unix://{sock}"],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    os.environ["DOCKER_HOST"] = f"unix://{sock}"
    try:
        wait_for("the start of dockerd", lambda: process.poll() is not None or answers(), 60.0)
        if process.poll() is not None:
            fail(f"dockerd ended with {process.returncode}:\n{log.read_text()[-2000:]}")
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):  # its containerd is in its process group
            os.killpg(process.pid, signal.SIGKILL)
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for place in reversed([one for one in mounts if one.startswith(f"{home}/")]):  # its network namespace
            subprocess.run(["umount", "--lazy", place], check=False)
        del os.environ["DOCKER_HOST"]


@contextlib.contextmanager
def namespace() -> Iterator[list[str]]:
    """A network namespace, for the length of a block; yields what goes before a command that is to run in it."""
    run(["ip", "netns", "add", NAMESPACE])
    try:
        run(["ip", "-n", NAMESPACE, "link", "set", "lo", "up"])
        # not `ip netns exec`, which hides the cgroups
        yield ["nsenter", f"--net=/run/netns/{NAMESPACE}"]
    finally:
        run(["ip", "netns", "del", NAMESPACE])


def answers() -> bool:
    """Whether a Docker engine does."""
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


def run(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """What a program prints.

    Raises:
        SystemExit: it failed.
    """
    environment = {**os.environ, **(env or {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    if done.returncode != 0:
        fail(f"{' '.join(command)} exited with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def docker(*words: str) -> str:
    """What docker prints."""
    return run(["docker", *words]).strip()


# -- images --------------------------------------------------------------------------------------------------


def make_base(home: Path) -> None:
    """Have the base image: the one that is there, the registry's, or one of our own making."""
    if subprocess.run(["docker", "image", "inspect", BASE], capture_output=True, check=False).returncode == 0:
        return
    if subprocess.run(["docker", "pull", "--quiet", BASE], capture_output=True, check=False).returncode == 0:
        return
    say(f"no registry answers: making {BASE} with debootstrap")
    rootfs = home / "rootfs"
    packages = "python3,python3-venv,python3-pip,ca-certificates"
    run(["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(rootfs)])
    (rootfs / "usr/bin/python").symlink_to("python3")
    (rootfs / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink()
    certificates = "etc/ssl/certs/ca-certificates.crt"
    shutil.copy(f"/{certificates}", rootfs / certificates)
    for folder in (
        "var/cache/apt",
        "var/lib/apt/lists",
        "usr/share/doc",
        "usr/share/man",
        "usr/share/locale",
    ):
        for path in (rootfs / folder).iterdir():  # what Debian's and Python's own slim images leave out
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for path in rootfs.rglob("*.pyc"):
        path.unlink()
    with subprocess.Popen(["tar", "-C", str(rootfs), "-c", "."], stdout=subprocess.PIPE) as tar:
        change = f"ENV PIP_CERT=/{certificates} SSL_CERT_FILE=/{certificates}"
        words = ["docker", "import", "-c", 'CMD ["python3"]', "-c", change, "-", BASE]
        subprocess.run(words, stdin=tar.stdout, check=True, capture_output=True)
    shutil.rmtree(rootfs)


@contextlib.contextmanager
def torch_index(home: Path) -> Iterator[str]:
    """Where the images get torch: PyTorch's index, or where it cannot be reached what pip finds here."""
    if given := os.environ.get("TORCH_INDEX"):
        yield given
        return
    with contextlib.suppress(OSError), urllib.request.urlopen(TORCH_INDEX, timeout=10):
        yield TORCH_INDEX
        return
    folder = home / "index" / "torch"
    pin = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *pin])
    [wheel] = [path.name for path in folder.glob("*.whl")]
    (folder / "index.html").write_text(f'<a href="{wheel}">{wheel}</a>\n')
    command = [
        sys.executable,
        "-u",
        "-m",
        "http.server",
        "--bind",
        "127.0.0.1",
        INDEX_PORT,
        "-d",
        str(folder.parent),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        port = re.search(r"port (\d+)", server.stdout.readline())
        assert port is not None
        try:
            yield f"http://127.0.0.1:{port[1]}"
        finally:
            server.kill()
            shutil.rmtree(folder.parent)


def megabytes(image: str) -> float:
    """The size of an image with all that it is made of."""
    return int(docker("image", "inspect", "--format", "{{.Size}}", image)) / 1e6


# -- the story -----------------------------------------------------------------------------------------------


class Try:
    """One run of the compose file.

    Args:
        compose: `docker-compose` or `docker compose`.
        log: where the output of `up` goes.
        up: its process.
    """

    def __init__(self, compose: Sequence[str], log: Path, up: subprocess.Popen[bytes]) -> None:
        self._compose = [*compose, "-p", PROJECT]
        self._log = log
        self._up = up
        self._ids: dict[str, str] = {}

    def compose(self, *words: str, shown: bool = False) -> str:
        """What compose prints."""
        if shown:
            say(f"$ docker-compose {' '.join(words)}")
        return run([*self._compose, *words]).strip()

    def container(self, service: str) -> str:
        """The id of a service's container."""
        if not self._ids.get(service):
            self._ids[service] = self.compose("ps", "-q", service)
        return self._ids[service]

    def inside(self, service: str, *words: str) -> str | None:
        """What a program in a service's container prints; None where it fails."""
        command = ["docker", "exec", self.container(service), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.rstrip() if done.returncode == 0 else None

    def hetctl(self, *words: str) -> str | None:
        """What hetctl prints in a server's container; None where it has no answer."""
        if self._up.poll() is not None:
            fail(f"docker-compose up ended with {self._up.returncode}")
        for service in ("server-1", "server-2"):
            if (said := self.inside(service, "hetctl", "--token-file", TOKEN, *words)) is not None:
                return said
        return None

    def status(self) -> Any:
        """The group."""
        said = self.hetctl("--json", "get", "digits")
        return None if said is None else json.loads(said)

    def show_status(self) -> None:
        """Print it."""
        say("$ docker-compose exec server-1 hetctl --token-file /run/hetrdzv/token get digits")
        say(self.hetctl("get", "digits") or "no answer")

    def leading(self) -> str | None:
        """The service whose server leads."""
        ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:29400/readyz', timeout=2).read().decode())"
        for service in ("server-1", "server-2"):
            said = self.inside(service, "python", "-c", ask)
            if said is not None and json.loads(said)["role"] == "leader":
                return service
        return None

    def etcd_leader(self) -> str:
        """The service whose member leads etcd."""
        said = self.inside("etcd-1", "etcdctl", "endpoint", "status", "--cluster", "--write-out=json")
        assert said is not None
        [leader] = [
            one["Endpoint"]
            for one in json.loads(said)
            if one["Status"]["header"]["member_id"] == one["Status"]["leader"]
        ]
        found = re.search(r"etcd-\d", leader)
        assert found is not None
        return found[0]

    def lines(self) -> list[str]:
        """What the training said so far, the nodes' prefixes taken away."""
        found = re.finditer(
            r"\b(world size \d|epoch +\d+/|final accuracy).*", self._log.read_text(errors="replace")
        )
        return [one[0] for one in found]

    def epochs(self) -> int:
        """How many epochs it has told of."""
        return sum(line.startswith("epoch") for line in self.lines())

    def await_epochs(self, more: int) -> None:
        """Wait until it has told of so many more."""
        wanted = self.epochs() + more
        wait_for(f"{more} more epochs", lambda: self.epochs() >= wanted or None)

    def show_resumed(self, world_size: int) -> None:
        """Wait until a world of this size has trained for two epochs after a restart, and print them."""

        def found() -> list[str] | None:
            said = self.lines()
            at = max(n for n, line in enumerate(said) if line.startswith("world size"))
            return (
                said[at : at + 3] if f"world size {world_size}" in said[at] and len(said) > at + 2 else None
            )

        say("\n".join(f"    {line}" for line in wait_for(f"two epochs of {world_size} workers", found)))

    def show_training(self, number: int) -> None:
        """Print its last lines."""
        say("\n".join(f"    {line}" for line in self.lines()[-number:]))

    def await_round(self, what: str, world_size: int, beyond: int = 0) -> Any:
        """Wait until a round of this world size runs; returns it."""

        def found() -> Any:
            status = self.status()
            now = status and status["state"] == "running" and status["current_round"]
            return now if now and now["world_size"] == world_size and now["number"] > beyond else None

        return wait_for(what, found)

    def tell(self) -> None:
        """The story; raises where it does not end well."""
        say("$ docker-compose up")
        first = self.await_round("the first round", 4)
        wait_for("epochs", lambda: self.epochs() >= 3 or None)
        self.show_status()
        self.check_secrets()
        say(self.compose("ps", shown=True))
        self.show_training(2)

        etcd = self.etcd_leader()
        say(f"1. The member of etcd that leads the others is killed: {etcd}")
        self.compose("kill", "-s", "SIGKILL", etcd, shown=True)
        at = time.monotonic()
        wait_for("an answer", self.leading)
        say(f"a server leads {time.monotonic() - at:.1f} s later, and the training goes on:")
        self.await_epochs(5)
        self.show_training(2)

        server = wait_for("a leader", self.leading)
        say(f"2. The server that leads is killed: {server}")
        self.compose("kill", "-s", "SIGKILL", server, shown=True)
        at = time.monotonic()
        other = wait_for("another leader", self.leading, pause_s=0.1)
        say(f"{other} leads {time.monotonic() - at:.1f} s later; the training did not notice:")
        self.await_epochs(5)
        now = self.await_round("the same round", 4)
        assert now["number"] == first["number"], "the round should have gone on"
        self.show_training(2)

        cut = first["members"][0]["node_id"]
        network = f"{PROJECT}_jobs"
        say(f"3. The master, {cut}, is cut from the network, for longer than its lease")
        say(f"$ docker network disconnect {network} {cut}")
        docker("network", "disconnect", network, self.container(cut))
        at = time.monotonic()
        slots = first["members"][0]["slots"]
        without = self.await_round("the round without it", 4 - slots, first["number"])
        say(f"{time.monotonic() - at:.1f} s later the others' round runs without it:")
        self.show_resumed(4 - slots)
        time.sleep(max(0.0, at + 4 * LEASE_S - time.monotonic()))
        say(f"{time.monotonic() - at:.0f} s after the cut it is connected again")
        say(f"$ docker network connect {network} {cut}")
        docker("network", "connect", network, self.container(cut))
        at = time.monotonic()
        self.await_round("the round with it", 4, without["number"])
        say(f"{time.monotonic() - at:.1f} s later a round runs with it again, the world as large as before:")
        self.show_resumed(4)
        self.show_status()

        say("4. The end")
        codes = {name: int(docker("wait", self.container(name))) for name in AGENTS}
        self.show_training(2)
        say("$ docker-compose exec server-1 hetctl --token-file /run/hetrdzv/token events digits")
        say(self.hetctl("events", "digits") or "no answer")
        say(f"exit statuses: {', '.join(f'{name} {code}' for name, code in codes.items())}")
        status = self.status()
        accuracy = float(self.lines()[-1].split()[2])
        assert set(codes.values()) == {0}, "an agent failed"
        assert status["state"] == "succeeded", status["state"]
        assert status["restarts"] == 0, "no worker failed by itself"
        assert accuracy >= ACCURACY, f"accuracy {accuracy}"
        say(f"Done: accuracy {accuracy:.3f} (at least {ACCURACY} wanted), all three agents exited with 0.")

    def check_secrets(self) -> None:
        """The token is in no image and no environment, and whoever runs is not root."""
        token = self.inside("server-1", "cat", TOKEN)
        say(f"$ docker-compose exec big ls -l {TOKEN}\n{self.inside('big', 'ls', '-l', TOKEN)}")
        for service in ("etcd-1", "server-1", "big"):
            assert (self.inside(service, "id", "-u") or "0") != "0", f"{service} runs as root"
        assert token, "no token"
        assert token not in docker("inspect", *docker("ps", "-aq").split()), (
            "the token shows in docker inspect"
        )


def play(compose: Sequence[str], home: Path) -> None:
    """Run the compose file with faults, and take it down again."""
    log = home / "up.log"
    environment = {**os.environ, "EPOCHS": str(EPOCHS)}
    with log.open("wb") as output:
        up = subprocess.Popen(
            [*compose, "-p", PROJECT, "up"], cwd=ROOT, env=environment, stdout=output, stderr=output
        )
    one = Try(compose, log, up)
    try:
        one.tell()
    except BaseException:
        print(log.read_text(errors="replace")[-20_000:], flush=True)
        raise
    finally:
        one.compose("down", "--volumes", shown=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            up.wait(30)
        up.kill()


def build(compose: Sequence[str], home: Path, network: str) -> None:
    """Make the images that are not there, and say how large they are."""
    make_base(home)
    with torch_index(home) as index:
        os.environ.update(TORCH_INDEX=index, BUILD_NETWORK=network)
        say("$ docker-compose build")
        run([*compose, "-p", PROJECT, "build"])
    for image in (BASE, *IMAGES):
        say(f"    {image:28}{megabytes(image):6.0f} MB")
    assert megabytes("hetrdzv-server") < SERVER_MB, f"hetrdzv-server has more than {SERVER_MB} MB"


def main() -> None:
    """Try it."""
    for signum in (signal.SIGINT, signal.SIGTERM):  # everything is taken down then, too
        signal.signal(signum, lambda number, _: sys.exit(128 + number))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, help="keep images here for the next time [a temporary folder]")
    home = parser.parse_args().home
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    compose = ["docker", "compose"] if plugin.returncode == 0 else ["docker-compose"]
    with contextlib.ExitStack() as stack:
        if home is None:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hetrdzv-try-")))
        home.mkdir(parents=True, exist_ok=True)
        if answers():
            build(compose, home, os.environ.get("BUILD_NETWORK", "default"))
            play(compose, home)
            return
        needed = ("dockerd", "docker-compose", "debootstrap", "iptables", "ip", "nsenter")
        if missing := [
            program for program in needed if shutil.which(program, path="/usr/bin:/usr/sbin") is None
        ]:
            fail(
                f"no Docker engine answers, and to start one {', '.join(missing)} is missing: "
                "apt-get install -y --no-install-recommends docker.io docker-compose debootstrap iptables iproute2"
            )
        # Images are built in the machine's network, with no bridge; they run where they touch nothing of it.
        quiet = [
            "--bridge=none",
            "--iptables=false",
            "--ip6tables=false",
            "--ip-forward=false",
            "--ip-masq=false",
        ]
        with engine(home, ["dockerd", *quiet]):
            build(compose, home, "host")
        with namespace() as inside, engine(home, [*inside, "dockerd", "--bridge=none"]):
            play(compose, home)


if __name__ == "__main__":
    main()
