"""The objects in deploy/ as `kubectl apply` makes them, and what becomes of a pod that ends."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.cluster import HETAGENT, WORKLOAD, Agent, Cluster

DEPLOY = Path(__file__).parents[2] / "deploy"

Object = dict[str, Any]


def read(path: Path) -> list[Object]:
    """The objects in a file; nothing of them is shared, whatever YAML's aliases say."""
    found: list[Object] = json.loads(json.dumps(list(yaml.safe_load_all(path.read_text(encoding="utf-8")))))
    return found


def kustomized(name: str) -> list[Object]:
    """All objects of a folder's kustomization, with the images that it names."""
    folder = DEPLOY / name
    (made,) = read(folder / "kustomization.yaml")
    (images,) = read(folder / made["components"][0] / "kustomization.yaml")
    tags = {image["name"]: image["newTag"] for image in images["images"]}
    found = [one for file in made["resources"] for one in read(folder / file)]
    for template in (template for one in found for template in templates(one)):
        for container in containers(template["spec"]):
            container["image"] += f":{tags[container['image']]}"
    return found


def templates(part: Any) -> Iterator[Object]:
    """All templates of pods within an object."""
    return (below["template"] for below in _with_pods(part))


def _with_pods(part: Any) -> Iterator[Object]:
    """What has a template of pods: a Job, wherever it is written, a Deployment."""
    if isinstance(part, list):
        for one in part:
            yield from _with_pods(one)
    elif isinstance(part, dict):
        template = part.get("template", {})
        if isinstance(template, dict) and "containers" in template.get("spec", {}):
            yield part
        else:
            for one in part.values():
                yield from _with_pods(one)


def pods(objects: Sequence[Object]) -> Iterator[tuple[Object, Object, Object]]:
    """Each object that makes pods, with their labels and what it says of them."""
    for one in objects:
        for template in templates(one):
            yield one, template["metadata"]["labels"], template["spec"]


def containers(pod: Object) -> list[Object]:
    """All containers of a pod, those that run before the others first."""
    return [*pod.get("initContainers", ()), *pod["containers"]]


def container(pod: Object, name: str) -> Object:
    """A container of a pod."""
    return next(one for one in containers(pod) if one["name"] == name)


def words_of(pod: Object, name: str) -> list[str]:
    """The arguments that a container is started with."""
    return [str(word) for word in container(pod, name)["args"]]


@dataclass(frozen=True, slots=True)
class Pool:
    """A Job whose pods are agents, wherever it is written.

    Attributes:
        name: its folder, the object and the name of the pool.
        spec: of the Job.
    """

    name: str
    spec: Object

    @property
    def pod(self) -> Object:
        """What it says of its pods."""
        return dict(self.spec["template"]["spec"])

    @property
    def agent(self) -> list[str]:
        """The arguments of hetagent, some made up for what Kubernetes fills in."""
        (main,) = self.pod["containers"]
        words = [*main.get("command", ["hetagent"]), *main.get("args", ())]
        return _filled_in(words[words.index("hetagent") + 1 :])

    @property
    def create(self) -> list[str]:
        """The arguments of hetctl, which makes the job, likewise."""
        assert container(self.pod, "create")["command"] == ["hetctl"]
        return _filled_in(words_of(self.pod, "create"))

    def play(self, job: Cluster, name: str, *words: str, create: Sequence[str] = ()) -> Agent:
        """Run the containers of a pod as kubelet does, but here: what comes first has to succeed; returns the agent.

        Args:
            words: added to those of the workload.
            create: added to those of hetctl.
        """

        def here(given: Sequence[str]) -> list[str]:
            left_out = ("--server", "--token-file", "--gpus")
            return [*(word for word in given if not word.startswith(left_out)), f"--server={job.server.url}"]

        hetctl = [sys.executable, "-m", "hetrdzv.cli.hetctl", *here(self.create), *create]
        first = job.run(f"{name}-create", hetctl)
        assert first.wait() == 0, first.stderr
        agent = [*HETAGENT, *here(self.agent[: self.agent.index("train.py")]), "--gpus=1", "--device=cpu"]
        agent += [f"--node-id={name}", f"--ready-file={ready_file(job, name)}"]
        return job.run(name, [*agent, str(WORKLOAD), "--into", str(job.log.folder), "--light", *words])

    def action(self, status: int, *, evicted: bool = False) -> str | None:
        """What the Job does about a pod whose agent has this exit status; None: it is tried again, and that counts."""
        for rule in self.spec["podFailurePolicy"]["rules"]:
            codes = rule.get("onExitCodes")
            if codes is None:
                assert rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
                matches = evicted
            else:
                (main,) = self.pod["containers"]
                assert (codes["operator"], codes["containerName"]) == ("In", main["name"])
                matches = status in codes["values"]
            if matches:
                return str(rule["action"])
        return None


def ready_file(job: Cluster, name: str) -> Path:
    """What is there once a pod that is played is ready."""
    return job.folder / f"ready-{name}"


def pools(name: str) -> list[Pool]:
    """The Jobs of agents in a folder."""
    return [
        Pool(f"{name} {one['metadata']['name']} {part['template']['metadata']['labels']['pool']}", part)
        for one in kustomized(name)
        for part in _with_pods(one)
        if part["template"]["metadata"]["labels"].get("app") == "hetagent"
    ]


def _filled_in(words: Sequence[str]) -> list[str]:
    values = {"JOBSET_UID": "5f0e", "POOL": "large", "PET_NNODES": "2"}
    text = "\0".join(str(word) for word in words)
    for name, value in values.items():
        text = text.replace(f"$({name})", value)
    assert "$(" not in text
    return text.split("\0")
