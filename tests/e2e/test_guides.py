"""Types the commands of README, docs/snapshots.md and docs/operations.md. Those of docs/deploy.md: tests/netns."""

import re
import runpy
import tomllib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.support.pages import ROOT, Desk, commands
from tests.support.servers import free_port

pytestmark = pytest.mark.timeout(400)

EXAMPLE = ROOT / "examples" / "first" / "train.py"
FIRST = r"(\d) workers? \(rank 0 is process (\d+)\): step (\d+) of (\d+)"
"""The example's first line."""


def on_port(line: str, port: int) -> str:
    """The command of a server, on a port of its own."""
    return line.replace("hetserver", f"hetserver --port {port}")


# -- README --------------------------------------------------------------------------------------------------


def test_what_readme_installs_exists() -> None:
    """Typed for real by `make dist`, which installs the wheel with and without torch."""
    venv, agent, for_cpus = commands("README.md", "Install")
    assert venv == "python3 -m venv .venv && . .venv/bin/activate"
    assert agent == "pip install '.[agent]'"
    assert for_cpus.startswith(agent)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "agent" in project["optional-dependencies"]
    assert not any(name.startswith("torch") for name in project["dependencies"])


@pytest.mark.long
def test_readmes_first_run(tmp_path: Path) -> None:
    first, again, *_ = commands("README.md", "First run")
    with Desk(tmp_path) as here:
        said = here.run(first)
        assert re.search(FIRST, said), said
        assert re.search(r"epoch 10 of 10: 9\d\.\d% right", said), said
        said = here.run(again)
        match = re.search(FIRST, said)
        assert match is not None, said
        assert (match[1], match[3], match[4]) == ("3", "200", "400")
        assert "epoch 20 of 20" in said


@pytest.mark.long
def test_readmes_two_nodes_on_one_machine(tmp_path: Path) -> None:
    _, _, server, two, one, status, of_group, restart, events = commands("README.md", "First run")
    port = free_port()
    with Desk(tmp_path, {"127.0.0.1:29400": f"127.0.0.1:{port}"}) as here:
        here.type(on_port(server, port)).says("listening|http://")
        big = here.type(two)
        big.says("joining group")  # the first of two on a host has the host's name, and so rank 0
        small = here.type(one)
        big.says(r"3 workers .* step 0 of 2000")
        big.says(r"epoch +1 of 100")
        where = f"export HET_SERVER=http://127.0.0.1:{port}"
        assert re.search(r"first .*running", here.run(where, status))
        shown = here.run(where, of_group)
        assert "round     1 (world size 3, 2 nodes)" in shown
        here.run(where, restart)
        assert int(big.says(r"(?s)epoch.*3 workers .* step (\d+) of 2000")[1]) >= 20
        assert "round 2" in here.run(where, events)
        assert {big.ctrl_c(), small.ctrl_c()} == {130}


@pytest.mark.long
def test_readmes_three_nodes(tmp_path: Path) -> None:
    server, agent, where, status, of_group, events, plan, drain, cancel = commands("README.md", "Three nodes")
    port = free_port()
    script = "examples/first/train.py --epochs 1000 --pause 0.1"
    swaps = {"http://head:29400": f"http://127.0.0.1:{port}", "train.py": script}
    with Desk(tmp_path, swaps) as here:
        started = here.type(on_port(server, port))
        started.says(r"/token")
        here.run("cp ~/.local/state/hetrdzv/token token")
        nodes = {
            name: here.type(
                agent.replace("hetagent", f"hetagent --device cpu --gpus {gpus} --node-id {name}")
            )
            for name, gpus in {"gpu1": 2, "gpu2": 1, "gpu3": 1}.items()
        }
        nodes["gpu1"].says("4 workers .* step 0")
        nodes["gpu1"].says("epoch")
        assert re.search(r"bert .*running", here.run(where, status))
        assert "world size 4, 3 nodes" in here.run(where, of_group)
        followed = here.type(f"{where}\n{events}")
        planned = " ".join(here.run(where, plan).split())  # it is folded
        planned = planned.replace("(gpu3, gpu1)", "(gpu1, gpu3)")  # as they have joined
        assert "2 of 3 nodes ready (gpu1, gpu3); waiting for 1 more in place of gpu2" in planned, planned
        here.run(where, drain)
        assert nodes["gpu2"].ends() == 4
        followed.says("drained")
        here.run(where, cancel)
        assert {nodes["gpu1"].ends(), nodes["gpu3"].ends()} == {3}


# -- docs/snapshots.md ------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_commands_of_the_page_on_resuming(tmp_path: Path) -> None:
    slowly, again, remove, kill = commands("docs/snapshots.md", "Try it")
    with Desk(tmp_path) as here:
        agent = here.type(slowly)
        agent.says(r"epoch +1 of 10")
        assert agent.ctrl_c() == 130, agent.output
        said = here.run(again)
        match = re.search(FIRST, said)
        assert match is not None, said
        assert (match[1], int(match[3]) >= 20) == ("3", True), said
        assert "epoch 10 of 10" in said

        here.run(remove)
        agent = here.type(slowly)
        pid = agent.says(FIRST)[2]
        agent.says(r"epoch +1 of 10")
        here.run(kill.replace("PID", pid))
        match = agent.says(rf"(?s)epoch.*{FIRST}")
        assert int(match[3]) >= 20, agent.output
        assert agent.ctrl_c() == 130


def test_the_workers_share_each_batch_and_each_epoch_has_every_point_once() -> None:
    example = SimpleNamespace(**runpy.run_path(str(EXAMPLE)))
    for world_size, step in product((1, 2, 7, 101), (0, example.STEPS - 1, example.STEPS)):
        whole = example.share(step, 0, 1)
        shares = [example.share(step, rank, world_size) for rank in range(world_size)]
        assert sorted(torch.cat(shares).tolist()) == sorted(whole.tolist())
        assert len(whole) == example.BATCH
    first, second = (
        torch.cat([example.share(epoch * example.STEPS + step, 0, 1) for step in range(example.STEPS)])
        for epoch in (0, 1)
    )
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(example.POINTS))
    assert not torch.equal(first, second)


def test_the_code_in_the_page_on_resuming_is_the_examples() -> None:
    page = (ROOT / "docs" / "snapshots.md").read_text(encoding="utf-8")
    source = " ".join(EXAMPLE.read_text(encoding="utf-8").split())
    blocks = re.findall(r"(?:^ {4}.*\n)+", page, re.MULTILINE)
    code = [" ".join(block.split()) for block in blocks if not re.match(r" +(hetagent|rm|kill) ", block)]
    assert len(code) == 2
    for block in code:
        assert block in source
    for piece in re.findall(r"`(order\[[^`]+)`", page):
        assert piece in source


# -- docs/operations.md --------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_commands_of_the_page_on_upgrades(tmp_path: Path) -> None:
    """With one version."""
    where, copy, venv, install = commands("docs/operations.md", "Upgrades")
    assert (venv, install) == ("python3 -m venv new", "new/bin/pip install .")
    stop, start, ready = commands("docs/operations.md", "Upgrade a server")
    drain, upgrade, undrain = commands("docs/operations.md", "Upgrade agents")
    assert upgrade == "pip install --upgrade '.[agent]'"
    remove, restore = commands("docs/operations.md", "Back to the old version")

    port = free_port()
    url = f"http://127.0.0.1:{port}"
    swaps = {"http://head:29400": url, "new/bin/hetserver": "hetserver", "gpu2": "b"}

    def serve(here: Desk, line: str) -> Callable[[], None]:
        """Start a server as the page says and wait until it is ready; returns what stops it."""
        server = here.type(on_port(line, port).replace("new/bin/", ""))
        server.wait_for(lambda: here.type(ready).ends() == 0, "an answer")

        def halt() -> None:
            here.run(stop.replace('"$(pgrep -o -x hetserver)"', str(server.process.pid)))
            server.says("hetserver: stopped; state is in ")
            assert server.ends() == 0

        return halt

    with Desk(tmp_path, swaps) as here:
        halt = serve(here, start)
        here.run("cp ~/.local/state/hetrdzv/token token")
        agent = f"hetagent --device cpu --gpus 1 --server {url} --token-file token --group bert --no-python"
        # its program does nothing until the end of the test
        nodes = {
            name: here.type(f"{agent} --nnodes 1:2 --last-call-s 15 --node-id {name} sleep 1000")
            for name in "ab"
        }
        nodes["b"].says("round 1: .* of 2")
        here.run(copy)
        assert (tmp_path / "before.db").stat().st_size > 0

        halt()
        nodes["a"].says("the round continues")
        halt = serve(here, start)
        nodes["a"].says("the server is back")
        assert "round 1" in here.run(where, "hetctl events bert")

        here.run(where, drain)
        assert nodes["b"].ends() == 4
        nodes["a"].says("round 2: rank 0 of 1")
        here.run(where, undrain)
        nodes["b"] = here.type(f"{agent} --node-id b sleep 1000")
        nodes["b"].says("round 3: ")
        assert "restarts  0 of 3" in here.run(where, "hetctl get bert")

        halt()
        here.run(remove, restore)
        serve(here, start)
        nodes["a"].says("(?s)the server no longer knows round 3.*round 4: rank 0 of 1")
        assert nodes["b"].ends() == 71, "it is not the agent of the copy"
        assert nodes["a"].ctrl_c() == 130


def test_the_commands_of_the_pages_are_found() -> None:
    assert len(commands("README.md", "First run")) == 9
    assert commands("README.md", "Run the tests") == ["make demo", "make test"]
