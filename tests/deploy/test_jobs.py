"""What becomes of the training job of deploy/kubernetes as pods end: its words and rules, with real agents."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetagent import statuses
from hetagent.options.parse import parse
from tests.support import manifests
from tests.support.cluster import WORKLOAD, Agent, Cluster, cluster

JOBS = {
    owner["metadata"]["name"]: (owner["spec"], pod)
    for owner, _, pod in manifests.pods(manifests.kustomized())
    if owner["kind"] == "Job"
}
AGENTS = {name: parse(manifests.words_of(pod, "hetagent"), {}) for name, (_, pod) in JOBS.items()}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(
    ("status", "evicted", "action"),
    [
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
    ],
)
def test_what_becomes_of_a_pod_by_its_exit_status(
    name: str, status: int, evicted: bool, action: str | None
) -> None:
    """None: it is tried again, and counts against `backoffLimitPerIndex`."""
    assert manifests.action(JOBS[name][0]["podFailurePolicy"], status, evicted=evicted) == action
    assert AGENTS[name].exit_codes == "agent", "a script's own codes would mean something else"


def test_pools_are_uneven_and_together_what_the_job_wants() -> None:
    (made,) = {tuple(manifests.words_of(pod, "create")) for _, pod in JOBS.values()}
    assert {(options.group, len(options.spec)) for options in AGENTS.values()} == {("digits", 0)}
    assert made[made.index("create") + 1] == "digits"
    completions = {name: spec["completions"] for name, (spec, _) in JOBS.items()}
    assert f"--nnodes=2:{sum(completions.values())}" in made
    gpus = {}
    for name, (spec, pod) in JOBS.items():
        assert spec["completionMode"] == "Indexed"
        gpus[name] = pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
        assert pod["nodeSelector"] == {"nvidia.com/gpu.count": str(gpus[name])}, (
            "no small pod on a large node"
        )
    assert len(set(gpus.values())) == 2


# -- played with real agents ---------------------------------------------------------------------------------


class Pods:
    """Plays kubelet: runs the containers of a pod, one after the other, as processes on this machine."""

    def __init__(self, job: Cluster) -> None:
        self.job = job

    def start(self, index: int, owner: str = "agents-large") -> Agent:
        """Start the pod of an index: what comes first has to succeed, and its agent is what is returned."""
        pod = JOBS[owner][1]
        here = [f"--server={self.job.server.url}"]
        first = ["hetrdzv.cli.hetctl", *self._given(pod, "create"), *here, "--last-call-s=0.5"]
        assert self.job.run(f"create-{index}", [sys.executable, "-m", *first]).wait() == 0, self.job.report()
        words = self._given(pod, "hetagent")
        words = [word for word in words[: words.index("train.py")] if not word.startswith("--gpus")]
        words = [word.replace("/tmp/ready", str(self._ready_file(index))) for word in words]
        words += [*here, "--gpus=1", "--device=cpu", f"--node-id={owner}-{index}"]
        script = [str(WORKLOAD), "--into", str(self.job.log.folder), "--light"]
        return self.job.run(f"{owner}-{index}", [sys.executable, "-m", "hetagent.cli", *words, *script])

    def _ready_file(self, index: int) -> Path:
        return self.job.folder / f"ready-{index}"

    def ready(self) -> set[int]:
        """The indexes of the pods whose probe passes."""
        (probe,) = {
            str(pod["containers"][0]["readinessProbe"]["exec"]["command"]) for _, pod in JOBS.values()
        }
        assert probe == "['test', '-e', '/tmp/ready']"
        return {index for index in range(6) if self._ready_file(index).exists()}

    def _given(self, pod: manifests.Object, name: str) -> list[str]:
        here = ("--server", "--token-file")
        return [word for word in manifests.words_of(pod, name) if not word.startswith(here)]

    def ends(self, pod: Agent, owner: str = "agents-large") -> tuple[int, str | None]:
        """The exit status of its agent, and what its Job does about that."""
        status = pod.wait()
        return status, manifests.action(JOBS[owner][0]["podFailurePolicy"], status) if status else None

    def group(self) -> manifests.Object:
        """The training job."""
        reply = self.job.ask("GET", "/../digits")
        assert reply.status_code == 200, reply.text
        return dict(reply.json())


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


def test_an_index_that_is_still_drained_ends_with_the_job(pods: Pods) -> None:
    first = [pods.start(0), pods.start(1), pods.start(2)]
    number = pods.job.world(3)
    pods.job.post("../digits/nodes/agents-large-1/drain")
    pods.job.world(2, round_above=number)
    pods.job.finish()
    assert [pods.ends(pod)[0] for pod in first] == [0, statuses.DRAINED, 0], pods.job.report()
    assert pods.ends(pods.start(1)) == (0, None), "or its Job would never be complete"
