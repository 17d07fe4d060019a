"""What is in deploy/ for JobSet, Kueue and Kubeflow Trainer fits the schemas of these.

For JobSet and Trainer these are the models that Trainer publishes of its API, which has JobSet's in it. They ignore
fields that they do not know, so what comes out is compared with what went in. They do not know Kueue, or which values
are allowed: with HET_CRDS=FOLDER the CustomResourceDefinitions in that folder are asked as well, as they are in the
repositories of JobSet and Kueue (config/components/crd/bases) and Trainer (manifests/base/crds).
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubeflow_trainer_api.models as trainer
import pytest
import yaml

from tests.support import manifests

QUEUES = manifests.read(manifests.DEPLOY / "kueue" / "queues.yaml")
OBJECTS = [
    *manifests.kustomized("jobset"),
    *manifests.kustomized("kubeflow"),
    *manifests.read(manifests.DEPLOY / "kubeflow" / "trainjob.yaml"),
]
MODELS = {
    "JobSet": trainer.JobsetV1alpha2JobSet,
    "ClusterTrainingRuntime": trainer.TrainerV1alpha1ClusterTrainingRuntime,
    "TrainJob": trainer.TrainerV1alpha1TrainJob,
}


def name(one: manifests.Object) -> str:
    """Of an object, in a test's id."""
    return f"{one['kind']} {one['metadata']['name']}"


@pytest.mark.parametrize("one", OBJECTS, ids=name)
def test_trainers_models_take_it_and_lose_nothing(one: manifests.Object) -> None:
    assert MODELS[one["kind"]].from_dict(one).to_dict() == one


def test_they_do_not_take_everything() -> None:
    (jobset,) = manifests.kustomized("jobset")
    jobset["spec"]["failurePolicy"]["rules"][0]["onJobFailureReason"] = ["PodFailurePolicy"]
    assert trainer.JobsetV1alpha2JobSet.from_dict(jobset).to_dict() != jobset
    jobset["spec"]["failurePolicy"]["maxRestarts"] = "3"
    with pytest.raises(ValueError, match="maxRestarts"):
        trainer.JobsetV1alpha2JobSet.from_dict(jobset)


# -- with the definitions themselves -------------------------------------------------------------------------


@cache
def definitions(folder: str) -> dict[tuple[str, str], Any]:
    """The schema of each kind of object in a folder, by its API version and name."""
    found = {}
    for path in sorted(Path(folder).glob("*.yaml")):
        for crd in yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader):
            for version in crd["spec"]["versions"]:
                schema = strict(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}
                found[f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"]] = schema
    return found


def definition_of(one: manifests.Object) -> jsonschema.Draft202012Validator:
    """What checks an object; skips the test where there are no definitions."""
    folder = os.environ.get("HET_CRDS")
    if folder is None:
        pytest.skip("HET_CRDS names no folder with CustomResourceDefinitions")
    return jsonschema.Draft202012Validator(definitions(folder)[one["apiVersion"], one["kind"]])


def strict(schema: Any) -> Any:
    """The same as JSON Schema, without any field that is not in it: kubectl refuses those, too."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return made


@pytest.mark.parametrize("one", [*OBJECTS, *QUEUES], ids=name)
def test_its_definition_takes_it(one: manifests.Object) -> None:
    definition_of(one).validate(one)


def test_definitions_do_not_take_everything() -> None:
    (queue,) = (one for one in QUEUES if one["kind"] == "LocalQueue")
    with pytest.raises(jsonschema.ValidationError, match="clusterQueues"):
        definition_of(queue).validate(queue | {"spec": {"clusterQueues": "training"}})


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
