"""The objects in deploy/kubernetes as `kubectl apply -k` makes them, and what becomes of a pod that ends."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"

Object = dict[str, Any]


def kustomized(folder: Path = KUBERNETES) -> list[Object]:
    """All objects of a kustomization, with the images that it names."""
    made = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    assert {path.name for path in folder.glob("*.yaml")} == {*made["resources"], "kustomization.yaml"}
    found = [one for name in made["resources"] for one in read(folder / name)]
    tags = {image["name"]: image["newTag"] for image in made["images"]}
    used = set()
    for one in found:
        for container in containers_in(one):
            used.add(container["image"])
            container["image"] += f":{tags[container['image']]}"
    assert used == set(tags)
    return found


def read(path: Path) -> list[Object]:
    """The objects in a file."""
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def pods(objects: list[Object]) -> Iterator[tuple[Object, Object, Object]]:
    """Each object that makes pods, with their labels and what it says of them."""
    for one in objects:
        for template in templates(one):
            yield one, template["metadata"]["labels"], template["spec"]


def templates(part: Any) -> Iterator[Object]:
    """All templates of pods within an object: a CronJob's is in a template of a Job."""
    if isinstance(part, dict):
        template = part.get("template")
        if isinstance(template, dict) and "containers" in template.get("spec", {}):
            yield template
        else:
            for below in part.values():
                yield from templates(below)
    elif isinstance(part, list):
        for below in part:
            yield from templates(below)


def containers_in(one: Object) -> Iterator[Object]:
    """All containers of an object's pods, those that run before the others first."""
    for template in templates(one):
        yield from containers(template["spec"])


def containers(pod: Object) -> list[Object]:
    """All containers of a pod, those that run before the others first."""
    return [*pod.get("initContainers", ()), *pod["containers"]]


def words_of(pod: Object, name: str) -> list[str]:
    """What a container is started with."""
    return next([str(word) for word in c["args"]] for c in containers(pod) if c["name"] == name)


def action(policy: Object, status: int, *, evicted: bool = False) -> str | None:
    """What a `podFailurePolicy` does about a pod whose agent exited with this status; None: it is tried again, and
    that counts."""
    for rule in policy["rules"]:
        codes = rule.get("onExitCodes")
        if codes is None:
            matches = evicted and any(one["type"] == "DisruptionTarget" for one in rule["onPodConditions"])
        else:
            assert (codes["operator"], codes["containerName"]) == ("In", "hetagent")
            matches = status in codes["values"]
        if matches:
            return str(rule["action"])
    return None
