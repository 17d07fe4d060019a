"""What a person reads after a mistake (who, what, and what to do next), and the exit status."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from hetagent import statuses
from hetagent.node.network import hold_port
from tests.support.cluster import HETAGENT
from tests.support.programs.start import start_program
from tests.support.servers import ROOT, Hetserver, free_port

USAGE, NOBODY, UNFIT = statuses.USAGE, statuses.NOBODY, statuses.UNFIT
CPU = ("--gpus", "1", "--device", "cpu")
AWAY = ("--server", "127.0.0.1:9")
"""A server that is never asked, in cases that end before: --standalone would start one for each, two seconds of CPU."""


@dataclass(frozen=True)
class Said:
    """How an agent ended, and what it printed."""

    status: int
    text: str


@pytest.fixture(scope="module")
def server() -> Iterator[Hetserver]:
    with Hetserver() as made:
        yield made


@pytest.fixture
def hetagent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Runs hetagent in an empty folder with a script `train.py`, and returns how it ended."""
    (tmp_path / "train.py").write_text("raise SystemExit(0)\n")
    monkeypatch.chdir(tmp_path)

    def run(*argv: str, **environ: str) -> Said:
        output = tmp_path / "output"
        with output.open("wb") as file:
            process = start_program([*HETAGENT, *argv], env=os.environ | environ, stdout=file, stderr=file)
        return Said(process.wait(60), output.read_text())

    return run


Run = Callable[..., Said]


# -- the command line ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (
            ["train.py"],
            "hetagent: no server: give --server http://host:29400 (or set HET_SERVER), or --standalone for one node; both come before the script",  # noqa: E501
        ),
        (["--standalone", *CPU], "hetagent: --standalone needs a script, but there is none: add it after the flags"),
        (
            ["--server", "gpu1", "--standalone", "train.py"],
            "hetagent: --standalone starts its own server: leave --server out",
        ),
        (
            ["--standalone", "--nnodes", "2", "train.py"],
            "hetagent: --standalone is for one node: leave --nnodes out, or start a hetserver for several nodes",
        ),
        (
            [*AWAY, *CPU, "--log-dir", "train.py", "train.py"],
            "hetagent: --log-dir train.py is a file: name a folder",
        ),
        (
            [*AWAY, *CPU, "--logs-specs", "nope", "train.py"],
            "hetagent: --logs-specs: Could not find entrypoint under 'torchrun.logs_specs[nope]' key",
        ),
    ],
)  # fmt: skip
def test_a_command_line_that_makes_no_sense(hetagent: Run, argv: list[str], text: str) -> None:
    said = hetagent(*argv)
    assert said.text.startswith(text), said.text
    assert len(said.text.splitlines()) == 1
    assert said.status == USAGE


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["nowhere.py"], "script 'nowhere.py' does not exist (looked from {folder})"),
        (["--no-python", "nowhere"], "program 'nowhere' is not found: give its path, or install it on this node"),
        (["."], "script '.' is a folder without __main__.py: give the path of a script"),
        (["--no-python", "./train.py"], "program './train.py' is not executable: run chmod +x ./train.py, or leave --no-python out for Python"),  # noqa: E501
        (["--no-python", "./train.sh"], "program './train.sh' is not executable: run chmod +x ./train.sh, or leave --no-python out for Python"),  # noqa: E501
        (["--no-python", "run.sh"], "program 'run.sh' is not on PATH: write ./run.sh for the one in this folder"),
        (["-m"], "--module needs a script, but there is none: add it after the flags"),
    ],
)  # fmt: skip
def test_a_script_that_cannot_be_run(hetagent: Run, tmp_path: Path, argv: list[str], text: str) -> None:
    for name, mode in (("train.sh", 0o644), ("run.sh", 0o755)):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(mode)
    said = hetagent(*AWAY, *CPU, *argv)
    assert said == Said(USAGE, f"hetagent: {text.format(folder=tmp_path)}\n")


@pytest.mark.parametrize(
    ("argv", "numactl", "text"),
    [
        (CPU, True, "binds workers to the CPUs near their GPUs, but CPU workers have none: leave it out"),
        (["--nproc-per-node", "1"], False, "needs the program numactl: install it on this node, or leave the flag out"),
    ],
)  # fmt: skip
def test_numa_binding_that_cannot_work(
    hetagent: Run, tmp_path: Path, argv: list[str], numactl: bool, text: str
) -> None:
    """torch finds out at every start of workers, which would cost all restarts."""
    if numactl:
        (tmp_path / "numactl").write_text("#!/bin/sh\n")
        (tmp_path / "numactl").chmod(0o755)
    words = (*AWAY, *argv, "--numa-binding", "node", "train.py")
    said = hetagent(*words, PATH=str(tmp_path), CUDA_VISIBLE_DEVICES="0")
    assert said.text.startswith(f"hetagent: --numa-binding node {text}")
    assert said.status == USAGE


# -- the network ---------------------------------------------------------------------------------------------


def test_no_server_there(hetagent: Run) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    said = hetagent("--server", url, "--connect-timeout-s", "2", *CPU, "--node-id", "a", "train.py")
    assert said.status == NOBODY
    refused = f"no server answers ({url}: connection refused)"
    assert f"hetagent[a]: {refused}; trying again" in said.text
    assert f"ended    {refused}; gave up after 2 s: start hetserver there, or check --server" in said.text


def test_tls_to_a_server_without(hetagent: Run, server: Hetserver) -> None:
    """It is not tried for a minute: that ends the test's patience."""
    url = server.url.replace("http:", "https:")
    said = hetagent("--server", url, *CPU, "train.py")
    assert said.status == UNFIT
    assert f"refused  {url} answered, but does not speak TLS: use http://\n" in said.text


def test_no_free_port(hetagent: Run, server: Hetserver) -> None:
    port = free_port()
    with hold_port("127.0.0.1", (port, port)):
        flags = ("--node-id", "a", "--port-range", f"{port}-{port}", "--snapshot-memory", "off")
        said = hetagent("--server", server.url, *CPU, *flags, "train.py")
    assert said.status == UNFIT
    assert said.text.splitlines()[-1] == (
        f"hetagent: node 'a' cannot offer a port for the next round: no free port in {port}-{port} on 127.0.0.1 "
        "(Address already in use): widen --port-range, or stop the programs that use them"
    )


# -- the token -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hetserver]:
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text("the-right-one")
    file.chmod(0o600)
    with Hetserver("memory", 0, file) as made:
        yield made


@pytest.mark.parametrize(
    ("argv", "token", "status", "text"),
    [
        ([], None, UNFIT, "refused  this server requires a token: set HET_TOKEN or give --token-file"),
        ([], "a-wrong-one", UNFIT, "refused  this server does not accept the token: compare it with hetserver's"),
        ([], "two words", USAGE, "hetagent: HET_TOKEN must hold one token, a single word of ASCII characters\n"),
        (["--token-file", "nope"], None, USAGE, "/nope cannot be read: No such file"),
    ],
)  # fmt: skip
def test_a_token_that_is_none(
    hetagent: Run, guarded: Hetserver, argv: list[str], token: str | None, status: int, text: str
) -> None:
    environ = {"HET_TOKEN": token} if token is not None else {}
    said = hetagent("--server", guarded.url, *CPU, *argv, "train.py", **environ)
    assert said.status == status
    assert text in said.text
    assert token is None or token not in said.text


# -- the group -----------------------------------------------------------------------------------------------


def test_a_loopback_address_among_nodes_of_other_hosts(hetagent: Run, server: Hetserver) -> None:
    offer = {
        "incarnation": "other",
        "slots": 1,
        "address": "10.0.0.5",
        "port": 29500,
        "spec": {"min_nodes": 2},
    }
    url = f"{server.url}/v1/groups/loop/nodes/gpu1"
    httpx.put(url, json=offer, trust_env=False).raise_for_status()
    said = hetagent(
        *("--server", server.url, "--group", "loop", "--node-id", "gpu3", "--local-addr", "127.0.0.1", *CPU),
        "train.py",
    )
    assert said.status == UNFIT
    assert "gpu3 offers 127.0.0.1, which no other host can reach" in said.text
    assert "start hetagent with --local-addr or --interface" in said.text


def test_a_script_that_fails_and_where_its_logs_are(hetagent: Run, server: Hetserver, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('so far'); raise SystemExit(7)\n")
    flags = f"--server {server.url} --group fails --max-restarts 0 --log-dir logs -r 3".split()
    said = hetagent(*flags, *CPU, "train.py")
    assert said.status == 7
    [line] = [line for line in said.text.splitlines() if line.startswith("logs ")]
    folder = Path(line.split()[1])
    assert folder.parent == tmp_path / "logs"
    assert (folder / "attempt_1" / "0" / "stdout.log").read_text() == "so far\n"


# -- the real program ----------------------------------------------------------------------------------------


def test_the_installed_program() -> None:
    """The installed command behaves the same; if nobody reads its output, its status is its own, not Python's 120."""
    program = shutil.which("hetagent", path=str(Path(sys.executable).parent))
    command = [program] if program is not None else [sys.executable, "-m", "hetagent.cli.main"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}/rendezvous:{ROOT}/agent"}
    reader, writer = os.pipe()
    os.close(reader)
    for stderr in (subprocess.PIPE, writer):
        ended = subprocess.run(
            [*command, "train.py"], env=environment, stdout=writer, stderr=stderr, text=True, check=False
        )
        assert ended.returncode == USAGE
        if stderr == subprocess.PIPE:
            assert ended.stderr.startswith("hetagent: no server: give --server")
    os.close(writer)
