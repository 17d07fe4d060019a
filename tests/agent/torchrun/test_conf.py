"""What torchrun was told about the rendezvous, and the token for the server."""

import os
from pathlib import Path

import pytest
from tests.agent.torchrun.driver import params
from tests.test_docs import differences, page, quoted, rows, section
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, parse_args

from hetagent.errors import UsageError
from hetagent.torchrun import conf as torchrun_conf
from hetagent.torchrun import create_handler
from hetagent.torchrun.conf import OPTIONS, parse_conf
from hetrdzv.auth.files import TokenFileError
from hetrdzv.protocol.settings import SETTINGS, UNLIMITED_RESTARTS


def test_what_torchrun_passes_is_understood() -> None:
    """Uses torchrun's own parser: whatever it adds to the options has to be accepted."""
    words = ["--nnodes=2:4", "--rdzv-backend=hetrdzv", "--rdzv-endpoint=http://h1:1,h2", "--rdzv-id=G"]
    words += ["--rdzv-conf=node_id=gpu1,lease_s=7.5,on_join=spare,port_range=29500-29510", "train.py"]
    config, _, _ = config_from_args(parse_args(words))
    given = (config.rdzv_backend, config.rdzv_endpoint, config.run_id, config.min_nodes, config.max_nodes)
    conf = parse_conf(RendezvousParameters(*given, config.local_addr, **config.rdzv_configs))
    assert conf.access.servers == ("http://h1:1", "http://h2:29400")
    assert (conf.group, conf.node_id, conf.port_range) == ("G", "gpu1", (29500, 29510))
    assert conf.spec == {
        "min_nodes": 2,
        "max_nodes": 4,
        "max_restarts": UNLIMITED_RESTARTS,
        "lease_s": 7.5,
        "on_join": "spare",
    }


def test_what_torch_adds_is_all_that_is_passed_over() -> None:
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1)
    assert set(config.rdzv_configs) == torchrun_conf.TORCHS_OWN


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"endpoint": " "}, "--rdzv-endpoint: no server was given: name one"),
        (
            {"endpoint": "ftp://host"},
            "--rdzv-endpoint: server URL 'ftp://host': the scheme must be http or https",
        ),
        ({"run_id": "my job"}, "--rdzv-id 'my job' must be 1 to 128 letters"),
        ({"token": "secret"}, "no option 'token' with hetrdzv; known are ca_cert, .*, token_file"),
        ({"join_timeout": "3"}, "no option 'join_timeout'"),
        ({"max_restarts": "two"}, "max_restarts=two: 'two': Input should be a valid integer"),
        ({"node_id": "a b"}, "node_id=a b: 'a b' must be"),
        ({"lease_s": "-1"}, "lease_s=-1: '-1': Input should be greater than or equal to 0.5"),
        ({"on_join": "wait"}, "on_join=wait: "),
        ({"port_range": "9-1"}, "port_range=9-1: .* the smaller one first"),
        ({"local_addr": "10.0.0.1", "interface": "eth0"}, "local_addr and interface both choose the address"),
    ],
)
def test_nonsense_is_refused(how: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told) as refusal:
        create_handler(params(**how))
    assert "secret" not in str(refusal.value)


def test_the_address_may_come_from_torchrun() -> None:
    assert parse_conf(params(local_addr="10.0.0.1")).local_addr == "10.0.0.1"
    both = params(local_addr="10.0.0.1")
    both.config["local_addr"] = "10.0.0.2"
    with pytest.raises(UsageError, match="contradict each other"):
        parse_conf(both)


def test_every_option_and_default_is_documented() -> None:
    table = rows(section(page("docs/launch.md"), "Options"))
    told = {name: row[1] for row in table for name in quoted(row[:1])}
    settings = {name for name in SETTINGS if name in OPTIONS}
    assert differences("option", "docs/launch.md", {*told, *settings}, set(OPTIONS)) == []
    assert told["max_restarts"] == str(UNLIMITED_RESTARTS)
    assert told["connect_timeout_s"] == f"{parse_conf(params()).connect_timeout_s:g}"


def test_the_token_leaves_the_environment_and_is_kept_and_a_file_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HET_TOKEN", "secret")
    for _ in range(2):
        assert parse_conf(params()).access.token == "secret"
        assert "HET_TOKEN" not in os.environ
    file = tmp_path / "token"
    file.write_text("other\n")
    assert parse_conf(params(token_file=str(file))).access.token == "other"
    with pytest.raises(TokenFileError, match="cannot be read"):
        create_handler(params(token_file=str(tmp_path / "none")))
