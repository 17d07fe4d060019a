"""An upgrade in a running job: the server first, then one agent after the other; and a server that is put back."""

import io
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cluster import PAIR, Cluster
from tests.support.programs.start import servers
from tests.support.servers import ROOT, Hetserver

RELEASE, COMMIT = "0.1.0", "e77fb0c"
"""The release that is upgraded from, and the last commit before work on the next one began."""

Old = Callable[[], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the release."""
    found = subprocess.run(
        ["git", "-C", str(ROOT), "archive", COMMIT, "rendezvous", "agent"], capture_output=True, check=False
    )
    if found.returncode:
        pytest.skip(f"{RELEASE} is not in this clone's history: git fetch --unshallow")
    folder = tmp_path_factory.mktemp(RELEASE)
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as sources:
        sources.extractall(folder, filter="data")
    return folder


@pytest.fixture
def old(released: Path, monkeypatch: pytest.MonkeyPatch) -> Old:
    """A block in which servers and agents that are started are those of the release."""

    @contextmanager
    def block() -> Iterator[None]:
        with servers.unused(), monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", f"{released / 'rendezvous'}:{released / 'agent'}")
            yield

    return block


def version(server: Hetserver) -> str:
    """The version of the server that runs."""
    text: str = httpx.get(f"{server.url}/healthz", trust_env=False).json()["version"]
    return text


def test_a_job_lives_through_an_upgrade_of_its_server_and_of_an_agent(pair: Cluster, old: Old) -> None:
    pair.server.stop()
    with old():
        pair.server.start()
        assert version(pair.server) == RELEASE
        first = pair.start(PAIR)
    before = pair.pids()

    pair.server.stop()
    pair.server.start()
    assert version(pair.server) != RELEASE
    pair.progress(first)
    assert pair.pids() == before

    pair.agents["b"].workers()[0].kill()
    second = pair.world(3, round_above=first)
    assert {line["restart"] for line in pair.lines(round=second)} == {1}

    with_old = pair.agents["b"]
    with_old.send(15)
    assert with_old.wait() == 128 + 15
    pair.agent("b", PAIR["b"])
    third = pair.world(3, round_above=second)
    assert {line["restart"] for line in pair.lines(round=third)} == {1}
    pair.end_well("a", "b")


def completed(shown: Any, known: Any) -> Any:
    """What an older server shows, with what it does not know of as the newer one shows it."""
    if isinstance(shown, dict) and isinstance(known, dict):
        return {**known, **{name: completed(value, known.get(name)) for name, value in shown.items()}}
    if isinstance(shown, list) and isinstance(known, list) and len(shown) == len(known):
        return [completed(*both) for both in zip(shown, known, strict=True)]
    return shown


def test_a_server_can_be_put_back_on_what_a_newer_one_stored(tmp_path: Path, old: Old) -> None:
    spec = {"min_nodes": 2, "max_nodes": 2, "last_call_s": 0, "lease_s": 600}
    offer = {"incarnation": "1", "slots": 2, "address": "10.0.0.1", "port": 4001}
    with Hetserver(f"sqlite:{tmp_path / 'state.db'}") as server, httpx.Client(trust_env=False) as http:
        group = f"{server.url}/v1/groups/g"
        for node in ("a", "b"):
            http.put(f"{group}/nodes/{node}", json={**offer, "spec": spec}).raise_for_status()
        http.post(f"{group}/nodes/a/report", json={"incarnation": "1", "round": 1, "kind": "started"})
        stored, history = http.get(group).json(), http.get(f"{group}/events").json()
        assert stored["state"] == "starting"
        server.stop()
        with old():
            server.start()
        assert version(server) == RELEASE
        found = http.get(group).json()
        for name in ("state", "job", "round", "spec", "current_round", "counts"):
            assert completed(found[name], stored[name]) == stored[name]
        events = http.get(f"{group}/events").json()["events"][: len(history["events"])]
        assert completed(events, history["events"]) == history["events"]
        reply = http.post(f"{group}/nodes/b/report", json={"incarnation": "1", "round": 1, "kind": "started"})
        assert reply.json()["kind"] == "start"
