"""deploy/ on a real kube-apiserver with the real Job controller; what kubelets do is played here, with real agents.

Skipped where kube-apiserver, kube-controller-manager and kubectl are not on the PATH (Kubernetes 1.34 or newer). With
HET_CRDS=FOLDER JobSet's, Kueue's and Trainer's objects are made, too, by the CustomResourceDefinitions in that folder,
as they are in the repositories of JobSet and Kueue (config/components/crd/bases) and Trainer (manifests/base/crds).
"""

import json
import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hetagent import statuses
from tests.support import manifests
from tests.support.cluster import Agent, Cluster, cluster, wait_for
from tests.support.etcd import EtcdCluster
from tests.support.servers import free_port

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kubectl")
pytestmark = [
    pytest.mark.etcd,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not all(map(shutil.which, PROGRAMS)),
        reason=f"not all of {', '.join(PROGRAMS)} on the PATH: build them from the Kubernetes sources",
    ),
]

WAIT_S = 120.0
OWNER, INDEX = "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index"


class Kubernetes:
    """An API server without any node."""

    def __init__(self, folder: Path, etcd: str) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self._etcd = etcd
        self._running: list[subprocess.Popen[bytes]] = []
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE  # its certificate is its own
        self.http = httpx.Client(
            base_url=self.url, headers={"Authorization": "Bearer t"}, verify=tls, trust_env=False, timeout=30
        )
        self.config = folder / "kubeconfig"

    def start(self) -> None:
        """Start it, and the Job controller."""
        (self.folder / "tokens").write_text("t,admin,1,system:masters\n")
        key = self.folder / "key.pem"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        made = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        made |= {
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        self.config.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **made}))
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://{self._etcd}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--cert-dir={self.folder}",
            f"--token-auth-file={self.folder / 'tokens'}",
            "--authorization-mode=AlwaysAllow",
            "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://here",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
        )
        wait_for(self._is_up, "the API server", WAIT_S)
        self._run(
            "kube-controller-manager",
            f"--kubeconfig={self.config}",
            "--controllers=job-controller",
            "--leader-elect=false",
            f"--secure-port={free_port()}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.folder}",
        )

    def _is_up(self) -> bool:
        try:
            return self.http.get("/readyz").is_success
        except httpx.HTTPError:
            return False

    def _run(self, program: str, *args: str) -> None:
        with (self.folder / f"{program}.log").open("ab") as log:
            self._running.append(subprocess.Popen([program, *args], stdout=log, stderr=log))

    def close(self) -> None:
        """Kill both."""
        for process in reversed(self._running):
            process.kill()
            process.wait()
        self.http.close()

    def kubectl(self, *words: str | Path) -> str:
        """What kubectl says, which must work."""
        env = os.environ | {"KUBECONFIG": str(self.config)}
        command = ["kubectl", *(str(word) for word in words)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def get(self, path: str) -> Any:
        """An object, or a list of them."""
        reply = self.http.get(path)
        assert reply.is_success, reply.text
        return reply.json()

    def patch(self, path: str, change: object) -> None:
        """Change an object."""
        kind = {"Content-Type": "application/strategic-merge-patch+json"}
        reply = self.http.patch(path, json=change, headers=kind)
        assert reply.is_success, reply.text


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    """An API server and the Job controller, with nothing in them."""
    with EtcdCluster() as etcd:
        made = Kubernetes(tmp_path_factory.mktemp("kubernetes"), etcd.endpoints)
        try:
            made.start()
            yield made
        finally:
            made.close()


class Kubelet:
    """Plays kubelet for the pods of the job: their containers are processes on this machine."""

    def __init__(self, kubernetes: Kubernetes, job: Cluster) -> None:
        self.kubernetes, self.job = kubernetes, job
        self.path = "/api/v1/namespaces/hetrdzv/pods"
        self.seen: dict[str, Agent | None] = {}
        self.told: set[str] = set()
        self.starts: list[tuple[float, str]] = []
        self.exits: list[tuple[str, int]] = []

    def look(self) -> bool:
        """Start the pods that are new, and tell of those that have ended."""
        time.sleep(0.2)
        for pod in self.kubernetes.get(self.path)["items"]:
            name, phase = pod["metadata"]["name"], pod["status"].get("phase")
            agent = self.seen.get(name)
            if name not in self.seen and phase == "Pending":
                self.seen[name] = self._start(pod)
                self._tell(name, "Running", {"running": {}})
            elif agent is not None and agent.process.poll() is not None:
                self.seen[name] = None
                status = agent.wait()
                self.exits.append((agent.name, status))
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                ended = {"exitCode": status, "finishedAt": now, "startedAt": now}
                self._tell(name, "Failed" if status else "Succeeded", {"terminated": ended})
                if pod["metadata"].get("deletionTimestamp"):
                    self.kubernetes.http.request(
                        "DELETE", f"{self.path}/{name}", json={"gracePeriodSeconds": 0}
                    )
            elif agent is not None and pod["metadata"].get("deletionTimestamp") and name not in self.told:
                self.told.add(name)
                agent.send(signal.SIGTERM)
        return True

    def until(self, what: Callable[[], Any], named: str) -> Any:
        """Look until something is so."""
        return wait_for(lambda: self.look() and what(), f"{named}: {self.exits}", WAIT_S)

    def _start(self, pod: manifests.Object) -> Agent:
        labels, spec = pod["metadata"]["labels"], pod["spec"]
        name = f"{labels[OWNER]}-{labels[INDEX]}"
        assert spec["hostname"] == name, "its node id"
        bound = {"metadata": {"name": pod["metadata"]["name"]}, "target": {"kind": "Node", "name": "here"}}
        reply = self.kubernetes.http.post(f"{self.path}/{pod['metadata']['name']}/binding", json=bound)
        assert reply.is_success, reply.text
        self.starts.append((time.monotonic(), name))
        return manifests.Pool(name, {"template": pod}).play(self.job, name, "--notice")

    def _tell(self, name: str, phase: str, state: manifests.Object) -> None:
        told = {
            "name": "hetagent",
            "image": "i",
            "imageID": "i",
            "ready": "running" in state,
            "restartCount": 0,
        }
        status = {"phase": phase, "containerStatuses": [told | {"state": state}]}
        self.kubernetes.patch(f"{self.path}/{name}/status", {"status": status})

    def of(self, index: str) -> list[float]:
        """When pods of an index were started."""
        return [at for at, name in self.starts if name == index]


def test_the_api_server_takes_everything(kubernetes: Kubernetes) -> None:
    kubernetes.kubectl(
        "apply", "--validate=strict", "-k", manifests.DEPLOY / "kubernetes", "--dry-run=client"
    )
    kubernetes.kubectl("create", "namespace", "hetrdzv")
    said = kubernetes.kubectl(
        "apply", "--validate=strict", "-k", manifests.DEPLOY / "kubernetes", "--dry-run=server"
    )
    assert said.count("(server dry run)") == len(manifests.kustomized("kubernetes"))


def test_a_drained_index_waits_longer_each_time_and_ends_with_the_job(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    """And what the Job controller makes of an announced stop and of a pod that is replaced."""
    jobs = [one for one in manifests.kustomized("kubernetes") if one["kind"] == "Job"]
    (tmp_path / "jobs.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": jobs}))
    with cluster(tmp_path) as job:
        kubelet = Kubelet(kubernetes, job)
        kubernetes.kubectl("apply", "--validate=strict", "-f", tmp_path / "jobs.json")
        kubelet.until(lambda: len(kubelet.starts) == 6, "six pods")
        number = job.world(6)
        job.post("../digits/nodes/agents-small-3/drain")
        kubelet.until(lambda: len(kubelet.of("agents-small-3")) == 3, "two more tries of the drained index")
        first, second, third = kubelet.of("agents-small-3")
        assert second - first > 5
        assert 18 < third - second < 60, "it waits longer, though it does not count"
        assert kubelet.exits == [("agents-small-3", statuses.DRAINED)] * 2
        number = job.world(5, round_above=number)
        # a pod that has to go
        pod = next(
            n for n, agent in kubelet.seen.items() if agent is not None and agent.name == "agents-large-1"
        )
        kubernetes.kubectl("-n", "hetrdzv", "delete", "pod", pod, "--wait=false")
        kubelet.until(lambda: ("agents-large-1", statuses.RESUME) in kubelet.exits, "its end")
        kubelet.until(lambda: len(kubelet.of("agents-large-1")) == 2, "its replacement")
        number = job.world(5, round_above=number + 1)
        path = "/apis/batch/v1/namespaces/hetrdzv/jobs"
        # as Kueue does to make room for another job
        gone = len(kubelet.exits)
        for name in ("agents-large", "agents-small"):
            kubernetes.patch(f"{path}/{name}", {"spec": {"suspend": True}})
        kubelet.until(lambda: not any(kubelet.seen.values()), "all of them gone")
        assert {status for _, status in kubelet.exits[gone:]} <= {statuses.RESUME, statuses.DRAINED}
        job.post("../digits/nodes/agents-small-3/undrain")
        for name in ("agents-large", "agents-small"):
            kubernetes.patch(f"{path}/{name}", {"spec": {"suspend": False}})
        kubelet.until(
            lambda: sum(agent is not None for agent in kubelet.seen.values()) == 6, "six pods again"
        )
        job.world(6, round_above=number)
        job.finish()

        def complete() -> bool:
            conditions = [one["status"].get("conditions", ()) for one in kubernetes.get(path)["items"]]
            return all(any(c["type"] == "Complete" for c in found) for found in conditions)

        kubelet.until(complete, "both Jobs complete")
        assert [status for name, status in kubelet.exits[-6:]].count(0) == 6
        assert job.ask("GET", "/../digits").json()["job"] == 1


def test_custom_resources_are_taken_by_their_own_rules(kubernetes: Kubernetes) -> None:
    if (folder := os.environ.get("HET_CRDS")) is None:
        pytest.skip("HET_CRDS names no folder with CustomResourceDefinitions")
    kubernetes.kubectl("create", "-f", folder)
    kubernetes.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    for words in (
        ("-k", manifests.DEPLOY / "jobset"),
        ("-k", manifests.DEPLOY / "kubeflow"),
        ("-f", manifests.DEPLOY / "kubeflow" / "trainjob.yaml"),
        ("-f", manifests.DEPLOY / "kueue"),
    ):
        assert " created" in kubernetes.kubectl("create", "--validate=strict", *words)
