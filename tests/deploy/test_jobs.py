"""What becomes of training jobs of deploy/ as pods end: words and rules, with real agents; schemas of their objects."""

import importlib
import signal
from pathlib import Path

import pytest

from hetagent import statuses
from hetagent.cli.parse import parse_command_line
from hetrdzv.cli import hetctl
from hetrdzv.client import parse_server_urls
from tests.support import manifests
from tests.support.cluster import Agent, cluster

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
    options = parse_command_line(pool.agent, {})
    assert options.exit_codes == "agent", "a script's own codes would mean something else"
    assert options.spec == {}
    server, token, create, group, *settings = pool.create
    assert create == "create"
    assert group == options.group
    assert parse_server_urls(server.removeprefix("--server=")) == list(options.servers)
    assert token == f"--token-file={options.token_file}"
    with hetctl.hetctl_group.commands["create"].make_context("create", [group, *settings]) as context:
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


def test_a_pod_that_is_replaced_after_the_end_ends_as_the_job_did(tmp_path: Path) -> None:
    names = ("agents-large-0", "agents-large-1")
    with cluster(tmp_path) as job:

        def start(name: str) -> Agent:
            return LARGE.play(job, name, create=["--last-call-s=0.5"])

        def ready() -> list[bool]:
            return [manifests.ready_file(job, name).exists() for name in names]

        first = [start(names[0])]
        job.wait_for(lambda: ready()[0], "a pod that is ready though it waits for another")
        first += [start(names[1])]
        job.world(2)
        assert ready() == [True, True]
        job.finish()
        assert [pod.wait() for pod in first] == [0, 0], job.report()
        late = start(names[1])  # its machine went down before Kubernetes knew how it had ended
        assert late.wait() == 0, late.stderr
        assert not any(ready())
        group = job.ask("GET", "/../digits").json()
        assert (group["state"], group["job"]) == ("succeeded", 1)


QUEUES = manifests.read(manifests.DEPLOY / "kueue" / "queues.yaml")
OBJECTS = [
    *manifests.kustomized("jobset"),
    *manifests.kustomized("kubeflow"),
    *manifests.read(manifests.DEPLOY / "kubeflow" / "trainjob.yaml"),
]
MODELS = {
    "JobSet": "JobsetV1alpha2JobSet",
    "ClusterTrainingRuntime": "TrainerV1alpha1ClusterTrainingRuntime",
    "TrainJob": "TrainerV1alpha1TrainJob",
}


def name(one: manifests.Object) -> str:
    """Of an object, in a test's id."""
    return f"{one['kind']} {one['metadata']['name']}"


@pytest.mark.parametrize("one", OBJECTS, ids=name)
def test_trainers_models_take_it_and_lose_nothing(one: manifests.Object) -> None:
    models = importlib.import_module(
        "kubeflow_trainer_api.models"
    )  # a second, which other processes need not take
    assert getattr(models, MODELS[one["kind"]]).from_dict(one).to_dict() == one


# -- what no schema says -------------------------------------------------------------------------------------


def test_queues_have_room_for_the_pools() -> None:
    by_kind: dict[str, list[manifests.Object]] = {}
    for one in QUEUES:
        by_kind.setdefault(one["kind"], []).append(one)
    (queue,), (local,) = by_kind["ClusterQueue"], by_kind["LocalQueue"]
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    (group,) = queue["spec"]["resourceGroups"]
    quotas = {flavor["name"]: flavor["resources"] for flavor in group["flavors"]}
    labels = {one["metadata"]["name"]: one["spec"]["nodeLabels"] for one in by_kind["ResourceFlavor"]}
    assert quotas.keys() == labels.keys()
    for pool in manifests.pools("jobset"):
        (flavor,) = (n for n, found in labels.items() if found.items() <= pool.pod["nodeSelector"].items())
        gpus = pool.spec["completions"] * pool.pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
        assert {"name": "nvidia.com/gpu", "nominalQuota": gpus} in quotas[flavor]
    for one in OBJECTS:
        asked = one["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name")
        assert asked in (None, local["metadata"]["name"])


def test_train_jobs_name_runtimes_that_exist() -> None:
    there = {one["metadata"]["name"] for one in OBJECTS if one["kind"] == "ClusterTrainingRuntime"}
    asked = {one["spec"]["runtimeRef"]["name"] for one in OBJECTS if one["kind"] == "TrainJob"}
    assert asked == there
    for one in OBJECTS:
        if one["kind"] == "ClusterTrainingRuntime":
            steps = {
                job["template"]
                .get("metadata", {})
                .get("labels", {})
                .get("trainer.kubeflow.org/trainjob-ancestor-step"): job
                for job in one["spec"]["template"]["spec"]["replicatedJobs"]
            }
            (main,) = steps["trainer"]["template"]["spec"]["template"]["spec"]["containers"]
            assert (steps["trainer"]["name"], main["name"]) == ("node", "node"), (
                "Trainer looks for these names"
            )
