"""A real agent with a token for its own groups, over TLS, whose token changes while its worker runs."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.certificates import Authority
from tests.servers import ROOT, Hetserver

WAIT_S = 60.0

OLD, NEW, WATCH = "the-old-token-of-nodes", "the-new-token-of-nodes", "the-token-of-watchers"


def write(path: Path, text: str) -> Path:
    """Another file in its place."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o600)
    return new.replace(path)


def start(program: str, *words: str) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HET_")}
    path = os.pathsep.join([str(ROOT / "rendezvous"), str(ROOT / "agent")])
    return subprocess.Popen(
        [sys.executable, "-m", program, *words],
        env={**environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_job_runs_on_over_tls_while_its_token_changes(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    head, gpu1 = authority.issue("head"), authority.issue("gpu1", "DNS:gpu1")
    tokens = write(tmp_path / "tokens", f"{OLD} agent group=team-a-*\n{WATCH} read\n")
    mine, watcher = write(tmp_path / "mine", OLD), write(tmp_path / "watcher", WATCH)
    flags = ("--tls-cert", str(head.cert), "--tls-key", str(head.key), "--tls-client-ca", str(head.ca))
    with Hetserver("memory", 0, tokens, *flags) as server:
        tls = ("--ca-cert", str(head.ca), "--client-cert", str(gpu1.cert), "--client-key", str(gpu1.key))
        way = ("--server", server.url, *tls)
        node = ("--gpus", "1", "--device", "cpu", "--node-id", "gpu1", "--nnodes", "1", "--lease-s", "1")
        job = (
            "--no-python",
            "sh",
            "-c",
            f"touch {tmp_path}/runs; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done",
        )
        agent = start("hetagent.cli", *way, "--token-file", str(mine), *node, "--group", "team-a-bert", *job)
        try:
            other = start(
                "hetagent.cli",
                *way,
                "--token-file",
                str(mine),
                *node,
                "--group",
                "team-b-bert",
                "--no-python",
                "true",
            )
            said = other.communicate(timeout=WAIT_S)[0]
            assert other.returncode == 1, said
            assert "its role is agent, its groups are team-a-*" in said
            until = time.monotonic() + WAIT_S
            while not (tmp_path / "runs").exists():
                assert agent.poll() is None, agent.communicate()[0]
                assert time.monotonic() < until
                time.sleep(0.05)
            write(mine, NEW)
            write(tokens, f"{NEW} agent group=team-a-*\n{WATCH} read\n")
            time.sleep(3.5)  # a second until the server knows, and two leases
            (tmp_path / "go").touch()
            said = agent.communicate(timeout=WAIT_S)[0]
        finally:
            agent.kill()
            agent.wait()
        assert agent.returncode == 0, said
        look = start(
            "hetrdzv.cli.hetctl", *way, "--token-file", str(watcher), "events", "team-a-bert"
        ).communicate(timeout=WAIT_S)[0]
        assert "succeeded" in look
        assert "lost" not in look
        assert "is not heard" not in look
        assert server.stop() == 0
        for token in (OLD, NEW, WATCH):
            assert token not in server.log + said + look
