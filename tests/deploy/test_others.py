"""deploy/skypilot and deploy/ray without SkyPilot and Ray: commands that our programs take, and what statuses mean.

docs/others.md says what the two themselves have made of it; tests/ecosystem/test_ray.py runs Ray.
"""

import ast
import re
import shlex
import signal
from typing import Any

import yaml

from hetagent import statuses
from hetagent.cli.parse import parse_command_line
from hetrdzv.cli import hetserver
from tests.support.servers import ROOT

SKYPILOT = ROOT / "deploy" / "skypilot"


def task(name: str) -> dict[str, Any]:
    """A task of SkyPilot."""
    read: dict[str, Any] = yaml.safe_load((SKYPILOT / f"{name}.yaml").read_text(encoding="utf-8"))
    return read


def command(name: str, program: str) -> list[str]:
    """What a task gives one of our programs, with values for the shell's."""
    found = re.search(rf"/{program} (.*?)( \|\| .*)?$", task(name)["run"], re.MULTILINE)
    assert found is not None
    values = {**task(name).get("envs", {}), "SKYPILOT_MANAGED_JOB_ID": "7", "HOME": "/root"}
    line = re.sub(r"\$(\w+)", lambda variable: values[variable[1]], found[1])
    return shlex.split(line)


def test_skypilot_starts_a_server_that_outlives_preemptions() -> None:
    with hetserver.main.make_context("hetserver", command("server", "hetserver")) as context:
        assert context.params["store"].startswith("sqlite:")
    assert task("server")["resources"]["use_spot"] is False


def test_skypilot_starts_one_agent_per_managed_job() -> None:
    options = parse_command_line(command("node", "hetagent"), {"HET_TOKEN": "secret"})
    assert options.exit_codes == "agent", "a script's own codes would mean something else"
    assert options.script is not None
    assert (ROOT / options.script).exists()
    assert options.node_id == "sky-7"
    assert task("node").get("num_nodes", 1) == 1, "SkyPilot stops all nodes of a task when one ends"


def test_what_skypilot_and_ray_start_again() -> None:
    final = {0, statuses.FAILED, statuses.USAGE, statuses.CANCELLED, statuses.DRAINED}
    again = {
        *(statuses.NOBODY, statuses.UNFIT, statuses.RESUME),
        *(statuses.SIGNAL + number for number in (signal.SIGKILL, signal.SIGTERM)),
    }
    recovery = task("node")["resources"]["job_recovery"]
    assert set(recovery["recover_on_exit_codes"]) == again
    assert f"test $status != {statuses.RESUME} || sleep" in task("node")["run"]

    tree = ast.parse((ROOT / "deploy" / "ray" / "agents.py").read_text(encoding="utf-8"))
    values: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = eval(ast.unparse(node.value), {}, values)
    assert set(values["FINAL"]) == final
    assert values["RESUME"] == statuses.RESUME
