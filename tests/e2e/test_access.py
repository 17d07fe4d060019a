"""A job over TLS, with a token for its own groups only, which changes while its worker runs."""

import os
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from hetagent import statuses
from tests.support.certificates import Authority, Tls, put_file
from tests.support.cluster import Agent, wait_for
from tests.support.programs.start import start_program
from tests.support.servers import Hetserver

LEASE_S = 1

OLD, NEW, WATCH = "the-old-token-of-nodes", "the-new-token-of-nodes", "the-token-of-watchers"


def start(folder: Path, name: str, program: str, *words: str) -> Agent:
    """Start a program of ours without any variable of ours; its output goes to a file."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("HET_")}
    with (folder / f"{name}.err").open("wb") as out:
        process = start_program([sys.executable, "-m", program, *words], env=environ, stdout=out, stderr=out)
    return Agent(name, process, folder)


def client(url: str, tls: Tls) -> httpx.Client:
    """A client that the server lets in."""
    context = ssl.create_default_context(cafile=str(tls.ca))
    context.load_cert_chain(tls.cert, tls.key)
    return httpx.Client(base_url=url, verify=context, trust_env=False)


def test_a_job_runs_on_over_tls_while_its_token_changes(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    head, gpu1 = authority.issue("head"), authority.issue("gpu1", "DNS:gpu1")
    tokens = put_file(tmp_path / "tokens", f"{OLD} agent group=team-a-*\n{WATCH} read\n")
    mine, watcher = put_file(tmp_path / "mine", OLD), put_file(tmp_path / "watcher", WATCH)
    flags = ("--tls-cert", str(head.cert), "--tls-key", str(head.key), "--tls-client-ca", str(head.ca))
    with Hetserver("memory", 0, tokens, *flags) as server, client(server.url, gpu1) as http:
        tls = ("--ca-cert", str(head.ca), "--client-cert", str(gpu1.cert), "--client-key", str(gpu1.key))
        way = ("--server", server.url, *tls)
        node = ("--gpus", "1", "--device", "cpu", "--node-id", "gpu1", "--nnodes", "1")
        own = (*way, "--token-file", str(mine), *node, "--lease-s", str(LEASE_S))
        script = f"touch {tmp_path}/runs; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
        work = ("--no-python", "sh", "-c", script)

        def ask(token: str) -> httpx.Response:
            return http.get("/v1/groups/team-a-bert", headers={"Authorization": f"Bearer {token}"})

        def heard_at() -> float:
            shown: dict[str, Any] = ask(WATCH).raise_for_status().json()
            return time.monotonic() - float(shown["nodes"][0]["heard_s_ago"])

        agent = start(tmp_path, "agent", "hetagent.cli.main", *own, "--group", "team-a-bert", *work)
        try:
            words = (*own, "--group", "team-b-bert", "--no-python", "true")
            other = start(tmp_path, "other", "hetagent.cli.main", *words)
            assert other.wait() == statuses.UNFIT, other.stderr
            assert "its role is agent, its groups are team-a-*" in other.stderr
            wait_for(lambda: agent.process.poll() is not None or (tmp_path / "runs").exists(), "the worker")
            assert agent.process.poll() is None, agent.stderr
            assert ask(OLD).status_code == 200
            put_file(mine, NEW)
            put_file(tokens, f"{NEW} agent group=team-a-*\n{WATCH} read\n")
            wait_for(lambda: ask(OLD).status_code == 401, "the end of the old token")
            ended_at = time.monotonic()
            wait_for(lambda: heard_at() > ended_at + 2 * LEASE_S, "the node, heard two leases later")
            (tmp_path / "go").touch()
            assert agent.wait() == 0, agent.stderr
        finally:
            agent.process.kill()
            agent.wait()
        words = (*way, "--token-file", str(watcher), "events", "team-a-bert")
        look = start(tmp_path, "look", "hetrdzv.cli.hetctl", *words)
        assert look.wait() == 0, look.stderr
        assert "succeeded" in look.stderr
        assert "lost" not in look.stderr
        assert "is not heard" not in look.stderr
        assert server.stop() == 0
        for token in (OLD, NEW, WATCH):
            assert token not in server.log + agent.stderr + look.stderr
