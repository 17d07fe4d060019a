"""What a person is warned of who has named no group."""

from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from tests.support.servers import Hetserver

from hetagent.job.company import warning
from hetagent.launch.command import checksum
from hetagent.options.model import UsageError
from hetagent.options.parse import parse
from hetrdzv.client.client import Client

HEAD = ("--server", "http://head:29400")


def warned(url: str, *argv: str, servers: Sequence[str] = HEAD) -> str | None:
    """The warning of an agent whose server is `head`, which answers at `url`."""
    options = parse([*servers, "--node-id", "c", *argv, "train.py"], {})
    return warning(options, lambda: Client([url]))


def test_who_names_no_group_hears_whose_job_it_joins(server: Hetserver) -> None:
    assert warned(server.url) == (
        "warning: no --group, so this node joins the job 'default', as everybody does who names none; for a job of "
        "your own give --group NAME on each of its nodes"
    )
    for node_id in ("a", "b"):
        body = {"incarnation": "i", "slots": 1, "address": "127.0.0.1", "port": 1, "script": "bert.py"}
        body["spec"] = {"min_nodes": 3}
        httpx.put(f"{server.url}/v1/groups/default/nodes/{node_id}", json=body).raise_for_status()
    said = warned(server.url)
    assert said is not None
    assert "joins the job 'default' of a, b (waiting: bert.py), as everybody does" in said
    httpx.post(f"{server.url}/v1/groups/default/cancel").raise_for_status()


def test_a_server_that_does_not_answer_delays_nobody() -> None:
    said = warned("http://127.0.0.1:1")
    assert said is not None
    assert "joins the job 'default', as" in said


def test_another_script_of_the_same_name_joins_nobody_by_accident(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("mine = 1\n")
    with Hetserver() as server:
        local = ("--server", server.url)
        body = {"incarnation": "i", "slots": 1, "address": "127.0.0.1", "port": 1, "script": "train.py"}
        body |= {"device": {"script": "68ef57fc"}, "spec": {"min_nodes": 3}}
        httpx.put(f"{server.url}/v1/groups/default/nodes/a", json=body).raise_for_status()
        for servers in (HEAD, local):
            with pytest.raises(UsageError) as refused:
                warned(server.url, servers=servers)
            assert str(refused.value) == (
                "no --group, and the job 'default' of a runs another train.py than this one: give --group NAME for "
                "a job of your own, or --group default to join that one"
            )
        assert warned(server.url, "--group", "default") is None
        own = checksum("train.py", module=False, no_python=False)
        body |= {"device": {"script": own}}
        httpx.put(f"{server.url}/v1/groups/default/nodes/c", json=body).raise_for_status()
        assert warned(server.url, servers=local) is None, (
            "it was in this job before, and its script has changed since"
        )


@pytest.mark.parametrize(
    ("argv", "servers"),
    [
        (("--group", "bert"), HEAD),
        (("--rdzv-id", "bert"), HEAD),
        ((), ("--server", "http://127.0.0.1:29400,localhost")),
        ((), ("--standalone",)),
    ],
)
def test_nobody_else_is_warned(argv: Sequence[str], servers: Sequence[str]) -> None:
    assert warned("http://127.0.0.1:1", *argv, servers=servers) is None
