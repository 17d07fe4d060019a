"""What is in deploy/ and docker-compose.yml is accepted by the programs that will read it, and says what exists.

Each start of hetserver and hetagent that a manifest names goes through the real parsers, so it cannot rot. What
docker makes of it all is tried by deploy/docker/try.py (`make compose-test`).
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hetagent.cli.parse import parse_command_line
from hetrdzv.cli import hetserver
from hetrdzv.client import parse_server_urls
from hetrdzv.protocol.settings import DEFAULT_SPEC
from hetrdzv.protocol.states import GroupState
from hetrdzv.service.metrics import Metrics
from tests.support import manifests, needs

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
KUSTOMIZED = ("kubernetes", "jobset", "kubeflow")
OBJECTS = manifests.kustomized("kubernetes")
POOLS = {pool.name: pool for name in KUSTOMIZED for pool in manifests.pools(name)}
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
RULES = DEPLOY / "prometheus" / "hetrdzv.rules.yml"
GRAFANA = DEPLOY / "grafana" / "hetrdzv.json"
TOKEN_MODE = 0o400


def checked(*command: str | Path, cwd: Path = ROOT) -> str:
    """What a program says, which must like what it was given."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, cwd=cwd
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def program(name: str) -> str:
    """A program of the system; skips the test where there is none."""
    found = needs.program(name)
    if found is None:
        pytest.skip(f"no {name} here; get it with: sudo make tools")
    return found


def ours(name: str) -> Path:
    """A program that came with the dev extra; skips the test on machines for which there is none."""
    if not (BIN / name).exists():
        pytest.skip(f"no {name} for this kind of machine")
    return BIN / name


# -- the commands --------------------------------------------------------------------------------------------


def compose() -> dict[str, Any]:
    """The compose file with the defaults of its variables."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    read: dict[str, Any] = yaml.safe_load(text)
    return read


def words(command: object) -> list[str]:
    """A command that is a list, or a line."""
    return shlex.split(command) if isinstance(command, str) else [str(word) for word in command or ()]  # type: ignore[attr-defined]


def starts() -> Iterator[tuple[str, str, list[str]]]:
    """Where a program of ours is started, which, and with what."""
    for name, service in compose()["services"].items():
        kind = {"hetrdzv-server": "hetserver", "hetrdzv-digits": "hetagent"}.get(service["image"])
        if kind is not None and "entrypoint" not in service:
            yield f"compose {name}", kind, words(service.get("command"))
    for owner, _, pod in manifests.pods(OBJECTS):
        for container in pod["containers"]:
            if container["name"] == "hetserver":
                yield f"kubernetes {owner['metadata']['name']}", "hetserver", words(container["args"])
    for name, pool in POOLS.items():
        yield name, "hetagent", pool.agent
    for path in [*UNITS, *sorted((DEPLOY / "docker").glob("*.Dockerfile"))]:
        yield from unit_or_image_starts(path)


def unit_or_image_starts(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    """The start in a unit with the flags that its comment shows, or the default one of an image."""
    text = path.read_text(encoding="utf-8")
    values = dict(re.findall(r"^#   (\w+)=(.*)$", text, re.MULTILINE))
    for name, line in re.findall(r"^ExecStart=/opt/hetrdzv/bin/(\w+) (.*)$", text, re.MULTILINE):
        given = re.sub(r"\$(\w+)", lambda found: values[found[1]], line)
        given = given.replace("%i", "bert").replace("%d", "/run/credentials")
        yield f"systemd {path.name}", name, shlex.split(given)
    if found := re.search(r'^ENTRYPOINT \["hetserver"\]\nCMD \[(.*)\]$', text, re.MULTILINE):
        yield f"image {path.name}", "hetserver", re.findall(r'"([^"]*)"', found[1])


STARTS = list(starts())


def hetserver_options(arguments: list[str]) -> dict[str, Any]:
    """What hetserver makes of a command line."""
    with hetserver.main.make_context("hetserver", list(arguments)) as context:
        return context.params


@pytest.mark.parametrize(("name", "arguments"), [start[1:] for start in STARTS], ids=[s[0] for s in STARTS])
def test_every_start_is_one_that_our_programs_take(name: str, arguments: list[str]) -> None:
    if name == "hetserver":
        options = hetserver_options(arguments)
        assert options["host"] == "0.0.0.0"
        if (options["store"] or "").startswith("etcd:"):
            from hetrdzv.storage.etcd.access import make_access

            make_access(options["store"])
            assert parse_server_urls(options["advertise"]) == [options["advertise"]]
    else:
        options = parse_command_line(arguments, {})
        assert options.token_file is not None
        if options.script is None:  # the group has one
            assert "train.py" in next(pool.create for pool in POOLS.values() if pool.agent == arguments)
            return
        assert (ROOT / "examples/digits" / options.script).exists() or options.script.startswith("/srv/")


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_agents_know_every_server_by_the_name_that_it_advertises(where: str) -> None:
    mine = [start for start in STARTS if start[0].startswith(where)]
    advertised = {hetserver_options(a)["advertise"] for _, name, a in mine if name == "hetserver"}
    agents = [parse_command_line(a, {}) for _, name, a in mine if name == "hetagent"]
    assert {frozenset(agent.servers) for agent in agents} == {frozenset(advertised)}
    assert len({str(agent.spec) for agent in agents}) == 1, "settings of one group that differ"


# -- compose -------------------------------------------------------------------------------------------------


def test_compose_takes_its_file() -> None:
    services = compose()["services"]
    assert {name: service["hostname"] for name, service in services.items() if "hostname" in service} == {
        name: name for name in ("big", "small-1", "small-2")
    }
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"], name
        assert (ROOT / service["build"]["dockerfile"]).exists(), name
    checked(program("docker-compose"), "config", "--quiet")


def test_an_agent_is_gone_before_it_is_killed() -> None:
    """No manifest can read how long that takes: it says so twice."""
    for where, name, arguments in STARTS:
        if name == "hetagent":
            options, given = parse_command_line(arguments, {}), grace_s(where)
            stop_s = float(str(options.spec.get("stop_timeout_s", DEFAULT_SPEC.stop_timeout_s)))
            assert given >= stop_s + 15, f"{where}: {given} s for {stop_s} s"
            assert options.grace_s == given - 5, f"{where}: {given} s for {options.grace_s} s"


def grace_s(where: str) -> float:
    """How long what supervises an agent waits before it kills it (seconds)."""
    if where in POOLS:
        return float(POOLS[where].pod["terminationGracePeriodSeconds"])
    kind, name = where.split()
    if kind == "compose":
        return float(compose()["services"][name]["stop_grace_period"].removesuffix("s"))
    found = re.search(r"^TimeoutStopSec=(\d+)$", (DEPLOY / kind / name).read_text(), re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize("path", sorted((DEPLOY / "docker").glob("*.Dockerfile")), ids=lambda path: path.name)
def test_hadolint_likes_the_image(path: Path) -> None:
    checked(ours("hadolint"), path)
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^USER .*$", text, re.MULTILINE)[-1] in ("USER 10001:10001", "USER 10002:10002")
    assert "\nHEALTHCHECK " in text
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / one).exists() for one in source.split()), source


def test_shellcheck_likes_the_scripts() -> None:
    scripts = [
        path
        for folder in (DEPLOY, ROOT / ".ci")
        for path in folder.rglob("*")
        if path.is_file() and re.match(rb"#!.*\b(ba)?sh\b", path.read_bytes()[:64])
    ]
    assert scripts
    checked(ours("shellcheck"), *scripts)


# -- Kubernetes ----------------------------------------------------------------------------------------------


def test_kubernetes_takes_every_object(tmp_path: Path) -> None:
    """Also the Jobs that others make of what is written in a JobSet or a runtime."""
    jobs = [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "n"}, "spec": pool.spec}
        for pool in POOLS.values()
    ]
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all([*OBJECTS, *jobs]), encoding="utf-8")
    said = checked(sys.executable, "-m", "kubernetes_validate", "--strict", path)
    assert said.count(" passed ") == len(OBJECTS) + len(jobs)


@pytest.mark.parametrize("name", KUSTOMIZED)
def test_kustomize_makes_the_same_objects(name: str) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here, which kustomize comes with")
    made = yaml.safe_load_all(checked("kubectl", "kustomize", DEPLOY / name))

    def by_name(objects: Iterable[manifests.Object]) -> dict[tuple[str, str], manifests.Object]:
        return {(one["kind"], one["metadata"]["name"]): one for one in objects}

    assert by_name(made) == by_name(manifests.kustomized(name))


def test_every_pod_is_as_small_as_it_can_be() -> None:
    for owner, _, pod in manifests.pods([one for name in KUSTOMIZED for one in manifests.kustomized(name)]):
        name = owner["metadata"]["name"]
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["automountServiceAccountToken"] is False, name
        for container in manifests.containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert "memory" in container["resources"]["limits"], name
        for volume in pod.get("volumes", ()):
            if secret := volume.get("secret"):
                assert secret["defaultMode"] == TOKEN_MODE, name
                assert "fsGroup" in pod["securityContext"], f"{name}: root's alone, so nobody could read it"


def test_selectors_find_pods_and_broken_ones_may_be_evicted() -> None:
    labels = [found for _, found, _ in manifests.pods(OBJECTS)]
    selectors = [
        o["spec"]["selector"].get("matchLabels", o["spec"]["selector"])
        for o in OBJECTS
        if o["kind"] in ("Service", "PodDisruptionBudget", "StatefulSet", "Deployment")
    ]
    policies = [
        o["spec"]["podSelector"].get("matchLabels", {}) for o in OBJECTS if o["kind"] == "NetworkPolicy"
    ]
    assert len(policies) == 6
    for selector in selectors + policies:
        assert any(selector.items() <= one.items() for one in labels), selector
    budgets = [one["spec"] for one in OBJECTS if one["kind"] == "PodDisruptionBudget"]
    assert [one["unhealthyPodEvictionPolicy"] for one in budgets] == ["AlwaysAllow"] * 3


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    analyze = program("systemd-analyze")
    for path in UNITS:  # it looks for the program, too, and ours are elsewhere here
        text = path.read_text(encoding="utf-8").replace("/opt/hetrdzv/bin", str(BIN))
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    units = [tmp_path / path.name for path in UNITS]
    assert checked(analyze, "verify", "--man=no", *units) == ""
    for unit, exposure in zip(units, (50, 20), strict=True):  # hetagent's workers need devices; of 100
        checked(analyze, "security", "--offline=yes", f"--threshold={exposure}", unit)


# -- Prometheus ----------------------------------------------------------------------------------------------


def test_promtool_takes_the_rules_and_they_fire(tmp_path: Path) -> None:
    promtool = program("promtool")
    folder = tmp_path / "prometheus"
    shutil.copytree(RULES.parent, folder)
    (folder / "hetrdzv-token").write_text("secret")
    checked(promtool, "check", "rules", RULES.name, cwd=folder)
    checked(promtool, "check", "config", "prometheus.yml", cwd=folder)
    checked(promtool, "test", "rules", "hetrdzv.test.yml", cwd=folder)


@pytest.mark.parametrize("path", [RULES, GRAFANA], ids=lambda path: path.name)
def test_alerts_and_panels_speak_of_metrics_that_exist(path: Path) -> None:
    text = Metrics().render_text([], now=0.0, open_polls=0, leads=True).decode()
    there = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
    there |= {f"{name}_bucket" for name in re.findall(r"^# TYPE (\S+) histogram$", text, re.MULTILINE)}
    rules = path.read_text(encoding="utf-8").replace('\\"', '"')
    named = set(re.findall(r"\bhetrdzv_\w+", rules))
    assert named
    assert named <= there, named - there
    states = set(re.findall(r'\b(?:state|outcome)="(\w+)"', rules))
    assert states <= {state.value for state in GroupState}


def test_panels_say_what_they_show_and_ask_what_prometheus_takes(tmp_path: Path) -> None:
    panels: list[dict[str, Any]] = json.loads(GRAFANA.read_text(encoding="utf-8"))["panels"]
    for panel in panels:
        assert panel["description"], panel["title"]
    asked = [
        target["expr"].replace("$__rate_interval", "5m") for panel in panels for target in panel["targets"]
    ]
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(asked)]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    assert f"SUCCESS: {len(asked)} rules found" in checked(program("promtool"), "check", "rules", path)
