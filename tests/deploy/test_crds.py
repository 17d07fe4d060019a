"""What is in deploy/ for JobSet, Kueue and Kubeflow Trainer fits the schemas of these.

For JobSet and Trainer these are the models that Trainer publishes of its API, which has JobSet's in it. They ignore
fields that they do not know, so what comes out is compared with what went in. They do not know Kueue, or which values
are allowed.
"""

import importlib

import pytest

from tests.support import manifests

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
