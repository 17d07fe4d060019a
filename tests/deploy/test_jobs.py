"""What becomes of the training job of deploy/kubernetes as pods end: its words and rules, with real agents."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetagent import statuses
from hetagent.cli.parse import parse
from hetrdzv.cli import hetctl
from hetrdzv.client import servers_from
from tests.support import manifests
from tests.support.cluster import WORKLOAD, Agent, Cluster, cluster

FOLDERS = ("kubernetes", "jobset", "kubeflow")
POOLS = {pool.name: pool for name in FOLDERS for pool in manifests.pools(name)}
LARGE = POOLS["kubernetes agents-large large"]


ACTIONS = [
    (statuses.FAILED, False, "FailJob"),
    (statuses.USAGE, False, "FailJob"),
    (statuses.CANCELLED, False, "FailJob"),
    (statuses.DRAINED, False, "Ignore"),
    (statuses.NOBODY, False, None),
    (statuses.UNFIT, False, None),
    (statuses.RESUME, False, "Ignore"),
    (statuses.SIGNAL + signal.SIGKILL, False, None),
    (statuses.RESUME, True, "Ignore"),
    (statuses.FAILED, True, "Ignore"),
]
"""What a Job does by an agent's exit status, evicted or not; None: the pod is tried again, and that counts."""


@pytest.mark.parametrize("pool", POOLS.values(), ids=lambda pool: pool.name)
def test_what_becomes_of_a_pod_and_when_it_is_ready(pool: manifests.Pool) -> None:
    assert [(status, gone, pool.action(status, evicted=gone)) for status, gone, _ in ACTIONS] == ACTIONS
    assert pool.spec["completionMode"] == "Indexed"
    assert pool.spec["backoffLimitPerIndex"] == 20
    assert "maxFailedIndexes" not in pool.spec, "an index that was tried too often leaves the others alone"
    (main,) = pool.pod["containers"]
    _, _, file = main["readinessProbe"]["exec"]["command"]
    assert f"--ready-file={file}" in pool.agent, "it is ready once the server has its node"
    assert not {"livenessProbe", "startupProbe", "lifecycle"} & main.keys()
    mounted = {mount["mountPath"]: mount["name"] for mount in main["volumeMounts"]}
    memory = [volume["name"] for volume in pool.pod["volumes"] if volume.get("emptyDir", {}).get("medium")]
    assert memory == [mounted["/dev/shm"]]


@pytest.mark.parametrize("pool", POOLS.values(), ids=lambda pool: pool.name)
def test_the_job_is_made_beforehand_and_the_agents_take_it_as_it_is(pool: manifests.Pool) -> None:
    options = parse(pool.agent, {})
    assert options.exit_codes == "agent", "a script's own codes would mean something else"
    assert options.spec == {}
    server, token, create, group, *settings = pool.create
    assert create == "create"
    assert group == options.group
    assert servers_from(server.removeprefix("--server=")) == list(options.servers)
    assert token == f"--token-file={options.token_file}"
    with hetctl.cli.commands["create"].make_context("create", [group, *settings]) as context:
        spec = context.params
    assert spec["join_timeout_s"] == 86400, "nodes may have to be bought first"
    assert spec["nnodes"] == ((2, 2) if pool.name.startswith("kubeflow hetagent node") else (2, 6))


@pytest.mark.parametrize("name", ["kubernetes", "jobset"])
def test_pools_are_uneven_and_together_what_the_job_wants(name: str) -> None:
    pools = manifests.pools(name)
    assert sum(pool.spec["completions"] for pool in pools) == 6
    assert len({str(pool.create) for pool in pools}) == 1
    gpus = [pool.pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pool in pools]
    assert len(set(gpus)) == 2
    found = [pool.pod["nodeSelector"]["nvidia.com/gpu.count"] for pool in pools]
    assert found == [str(number) for number in gpus], "no small pod on a large node"
    for pool in pools:
        assert "nvidia.com/gpu" in {toleration["key"] for toleration in pool.pod["tolerations"]}


# -- played with real agents ---------------------------------------------------------------------------------


class Pods:
    """Plays kubelet: runs the containers of a pod, one after the other, as processes on this machine."""

    def __init__(self, job: Cluster) -> None:
        self.job = job

    def start(self, index: int) -> Agent:
        """Start the pod of an index: what comes first has to succeed, and its agent is what is returned."""
        owner, here = "agents-large", [f"--server={self.job.server.url}"]
        first = ["hetrdzv.cli.hetctl", *_given(LARGE.create), *here, "--last-call-s=0.5"]
        assert self.job.run(f"create-{index}", [sys.executable, "-m", *first]).wait() == 0, self.job.report()
        words = _given(LARGE.agent)
        words = [word for word in words[: words.index("train.py")] if not word.startswith("--gpus")]
        words = [word.replace("/tmp/ready", str(self._ready_file(index))) for word in words]
        words += [*here, "--gpus=1", "--device=cpu", f"--node-id={owner}-{index}"]
        script = [str(WORKLOAD), "--into", str(self.job.log.folder), "--light"]
        return self.job.run(f"{owner}-{index}", [sys.executable, "-m", "hetagent.cli.main", *words, *script])

    def _ready_file(self, index: int) -> Path:
        return self.job.folder / f"ready-{index}"

    def ready(self) -> set[int]:
        """The indexes of the pods whose probe passes."""
        return {index for index in range(6) if self._ready_file(index).exists()}

    def ends(self, pod: Agent) -> tuple[int, str | None]:
        """The exit status of its agent, and what its Job does about that."""
        status = pod.wait()
        return status, LARGE.action(status) if status else None

    def group(self) -> manifests.Object:
        """The training job."""
        reply = self.job.ask("GET", "/../digits")
        assert reply.status_code == 200, reply.text
        return dict(reply.json())


def _given(words: list[str]) -> list[str]:
    return [word for word in words if not word.startswith(("--server", "--token-file"))]


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    """A server, and nothing else yet."""
    with cluster(tmp_path) as made:
        yield Pods(made)


def test_a_pod_that_is_replaced_after_the_end_ends_as_the_job_did(pods: Pods) -> None:
    first = [pods.start(0)]
    pods.job.wait_for(lambda: pods.ready() == {0}, "a pod that is ready though it waits for another")
    first += [pods.start(1)]
    pods.job.world(2)
    assert pods.ready() == {0, 1}
    pods.job.finish()
    assert [pods.ends(pod) for pod in first] == [(0, None), (0, None)], pods.job.report()
    late = pods.start(1)  # its machine went down before Kubernetes knew how it had ended
    assert pods.ends(late) == (0, None), late.stderr
    assert pods.ready() == set()
    assert (pods.group()["state"], pods.group()["job"]) == ("succeeded", 1)


def test_a_drained_index_comes_back_after_undrain(pods: Pods) -> None:
    kept, drained, other = pods.start(0), pods.start(1), pods.start(2)
    number = pods.job.world(3)
    pods.job.post("../digits/nodes/agents-large-1/drain")
    assert pods.ends(drained) == (statuses.DRAINED, "Ignore"), drained.stderr
    number = pods.job.world(2, round_above=number)
    assert pods.ends(pods.start(1)) == (statuses.DRAINED, "Ignore"), "another try, after a while"
    pods.job.post("../digits/nodes/agents-large-1/undrain")
    back = pods.start(1)
    pods.job.world(3, round_above=number)
    pods.job.finish()
    assert [pods.ends(pod) for pod in (kept, back, other)] == [(0, None)] * 3, pods.job.report()


@pytest.mark.long
def test_an_index_that_is_still_drained_ends_with_the_job(pods: Pods) -> None:
    first = [pods.start(0), pods.start(1), pods.start(2)]
    number = pods.job.world(3)
    pods.job.post("../digits/nodes/agents-large-1/drain")
    pods.job.world(2, round_above=number)
    pods.job.finish()
    assert [pods.ends(pod)[0] for pod in first] == [0, statuses.DRAINED, 0], pods.job.report()
    assert pods.ends(pods.start(1)) == (0, None), "or its Job would never be complete"
