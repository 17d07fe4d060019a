"""etcd as deploy/kubernetes starts it, on loopback: a member that lost its disk, and a snapshot that is put back.

What is typed here is what docs/deploy.md says.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import manifests
from tests.support.etcd import START_S, binary
from tests.support.servers import free_port

PODS = {
    owner["metadata"]["name"]: pod for owner, _, pod in manifests.pods(manifests.kustomized("kubernetes"))
}
NAMES = ("etcd-0", "etcd-1", "etcd-2")

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(120)]


class Etcd:
    """The three pods of the StatefulSet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {name: (free_port(), free_port()) for name in NAMES}
        self._program = Path(binary("3.5"))
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def here(self, text: str, name: str) -> str:
        """A word of a manifest, as it is on this machine."""
        text = text.replace("$(POD_NAME)", name).replace("/var/lib/etcd", str(self.folder / name))
        client, peer = self.ports[name]
        for each, (its_client, its_peer) in self.ports.items():
            text = text.replace(f"{each}.etcd:2379", f"127.0.0.1:{its_client}")
            text = text.replace(f"{each}.etcd:2380", f"127.0.0.1:{its_peer}")
        text = text.replace("0.0.0.0:2379", f"127.0.0.1:{client}").replace(
            "0.0.0.0:2380", f"127.0.0.1:{peer}"
        )
        return text.replace("//etcd:2379", f"//127.0.0.1:{client}").replace("/backup", str(self.folder))

    def start(self, name: str, **env: str) -> subprocess.Popen[bytes]:
        """Start a member as its pod does.

        Args:
            env: instead of what the manifest has.
        """
        pod = PODS["etcd"]
        words = [self.here(word, name) for word in manifests.words_of(pod, "etcd")]
        given = {one["name"]: one["value"] for one in pod["containers"][0]["env"] if "value" in one}
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ETCD")}
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [str(self._program), *words], env=kept | given | env, stdout=log, stderr=log
            )
        return self._running[name]

    def kill(self, *names: str) -> None:
        """Kill members, and lose their disks."""
        for name in names:
            self._running[name].kill()
            self._running.pop(name).wait()
            shutil.rmtree(self.folder / name, ignore_errors=True)  # a slow one has none yet

    def close(self) -> None:
        """Kill what runs."""
        for process in self._running.values():
            process.kill()
            process.wait()

    def ctl(self, *words: str, at: str = "etcd-0", program: str = "etcdctl") -> str:
        """What etcdctl says in a pod."""
        env = os.environ | {"ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": f"http://127.0.0.1:{self.ports[at][0]}"}
        own = self._program.with_name(program)
        done = subprocess.run([str(own), *words], env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(done.stderr)
        return done.stdout

    def says(self, what: str, *words: str, at: str = "etcd-0") -> None:
        """Wait until etcdctl says something."""
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                if what in self.ctl(*words, at=at):
                    return
            time.sleep(0.1)
        raise AssertionError(f"no {what!r}:\n{(self.folder / f'{at}.log').read_text()[-2000:]}")


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    """Three members with something in them."""
    made = Etcd(tmp_path)
    try:
        for name in NAMES:
            made.start(name)
        made.says("OK", "put", "hetrdzv/job", "bert")
        yield made
    finally:
        made.close()


def test_a_member_that_lost_its_disk_is_replaced(etcd: Etcd) -> None:
    etcd.kill("etcd-2")
    assert etcd.start("etcd-2").wait(START_S) != 0, "the others have known it for long"
    assert "has already been bootstrapped" in (etcd.folder / "etcd-2.log").read_text()
    lost = next(line.split(",")[0] for line in etcd.ctl("member", "list").splitlines() if "etcd-2" in line)
    etcd.ctl("member", "remove", lost)
    peer = etcd.here("--peer-urls=http://etcd-2.etcd:2380", "etcd-2")
    etcd.says(
        "added to cluster", "member", "add", "etcd-2", peer
    )  # not in the first 5 s, in which it is unhealthy
    shutil.rmtree(etcd.folder / "etcd-2")
    etcd.start("etcd-2", ETCD_INITIAL_CLUSTER_STATE="existing")
    etcd.says("bert", "get", "hetrdzv/job", at="etcd-2")


def test_a_snapshot_is_put_back(etcd: Etcd) -> None:
    words = [etcd.here(word, "etcd-0") for word in manifests.words_of(PODS["etcd-backup"], "save")]
    etcd.ctl(*[word for word in words if not word.startswith("--endpoints")])
    etcd.kill(*NAMES)
    for name in NAMES:
        cluster = (w for w in manifests.words_of(PODS["etcd"], "etcd") if w.startswith("--initial-"))
        flags = [
            f"--name={name}",
            f"--data-dir={etcd.folder / name / 'data'}",
            *(etcd.here(word, name) for word in cluster),
        ]
        etcd.ctl("snapshot", "restore", str(etcd.folder / "etcd-0.db"), *flags, program="etcdutl")
    for name in NAMES:
        etcd.start(name)
    etcd.says("bert", "get", "hetrdzv/job", at="etcd-1")


def test_old_snapshots_go_before_there_is_a_new_one(tmp_path: Path) -> None:
    (keep,) = PODS["etcd-backup"]["initContainers"]
    for number in range(60):
        (tmp_path / f"{number:02}.db").touch()
        os.utime(tmp_path / f"{number:02}.db", (number, number))
    (tmp_path / "59.db.part").touch()  # the disk was full
    command = [word.replace("/backup", str(tmp_path)) for word in keep["command"]]
    for _ in range(2):
        subprocess.run(command, check=True)
        assert sorted(path.name for path in tmp_path.iterdir()) == [f"{n:02}.db" for n in range(13, 60)]
