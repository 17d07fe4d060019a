"""Two agents of one group on one host get different names; each gets its own back after a restart."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.servers import ROOT

from hetagent.node import names

SERVERS = ["http://a:29400", "http://b:29400"]
HOLD = """
import sys
from hetagent.node import names

name = names.take("gpu7", "bert", ["http://a:29400", "http://b:29400"])
print(name.node_id, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / f"hetagent-{os.getuid()}"


def take(group: str = "bert", servers: list[str] = SERVERS) -> names.Name:
    return names.take("gpu7", group, servers)


def test_the_lowest_free_name(folder: Path) -> None:
    first, second, third = take(), take(), take()
    assert [name.node_id for name in (first, second, third)] == ["gpu7", "gpu7.2", "gpu7.3"]
    assert first.notes == []
    assert second.notes == ["this host already has an agent of group 'bert', so this one is node 'gpu7.2'"]
    second.release()
    again = take()
    assert again.node_id == "gpu7.2"
    for name in (first, third, again):
        name.release()
        name.release()  # once more changes nothing
    assert list(folder.iterdir()) == []
    assert folder.stat().st_mode & 0o777 == 0o700


def test_groups_and_servers_do_not_disturb_each_other() -> None:
    mine = take()
    others = [take("gpt"), take(servers=["http://c:29400"])]
    assert [name.node_id for name in others] == ["gpu7", "gpu7"]
    same = take(servers=[*reversed(SERVERS), SERVERS[0]])
    assert same.node_id == "gpu7.2"
    for name in (mine, same, *others):
        name.release()


def test_an_agent_that_was_killed_gets_its_name_back() -> None:
    for _ in range(2):
        agent = subprocess.Popen(
            [sys.executable, "-c", HOLD],
            env=os.environ | {"PYTHONPATH": f"{ROOT}/agent"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert agent.stdout is not None
        assert agent.stdout.readline().decode().strip() == "gpu7"
        agent.kill()
        agent.communicate()


def test_a_name_that_nobody_keeps_is_free_again() -> None:
    """A program may drop torch's handler without a shutdown."""
    take()
    assert take().node_id == "gpu7"


def test_a_folder_of_somebody_else_is_not_used(folder: Path, tmp_path: Path) -> None:
    """Then there is no lock, and the server decides, as between two hosts."""
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    mine = [take(), take()]
    assert [name.node_id for name in mine] == ["gpu7", "gpu7"]
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert (take().node_id, take().node_id) == ("gpu7", "gpu7")
    assert not list(tmp_path.glob("*.gpu7"))
