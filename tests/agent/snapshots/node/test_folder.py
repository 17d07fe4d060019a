"""The folder of a node: whose it is, for how long, and what it may take."""

import os
import subprocess
import sys
import threading
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from hetagent.cli.parse import parse_command_line
from hetagent.errors import UsageError
from hetagent.node.processes.identity import AgentIdentity
from hetagent.node.scratch import remove_stale_folders
from hetagent.options.model import SnapshotOptions
from hetagent.snapshots.node import folder as folders
from hetagent.snapshots.node import hook, setup
from hetagent.snapshots.node.folder import OLD_S, PREFIX, NodeFolder
from hetagent.snapshots.node.setup import make_snapshot_hook
from hetrdzv.protocol.snapshots import SnapshotInventory

SERVERS = ["http://s:1"]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "WAIT_S", 0.2)


def made(parent: Path, group: str = "g", node_id: str = "a") -> NodeFolder:
    return NodeFolder(parent, group, node_id, SERVERS)


def test_only_this_user_may_enter_it(tmp_path: Path) -> None:
    folder = made(tmp_path)
    assert folder.path.parent == tmp_path
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.close(remove=True)
    folder.close(remove=False)  # harmless
    assert list(tmp_path.iterdir()) == []


def test_the_next_agent_finds_what_a_killed_one_has_left(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from hetagent.snapshots.node.folder import NodeFolder\n"
        f"(NodeFolder(Path(sys.argv[1]), 'g', 'a', {SERVERS!r}).path / 'kept').touch(); print(flush=True)\n"
        "time.sleep(99)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        first.stdout.readline()
        with pytest.raises(OSError, match="another agent of this node uses"):
            made(tmp_path)
        first.kill()
        first.wait()
    second = made(tmp_path)
    assert (second.path / "kept").exists()
    second.close(remove=False)
    assert (second.path / "kept").exists()


def test_a_folder_that_others_could_have_made_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path)
    folder.close(remove=False)
    folder.path.chmod(0o755)
    with pytest.raises(PermissionError, match="not a folder of this user alone"):
        made(tmp_path)
    folder.path.rename(tmp_path / "elsewhere")
    folder.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="not a folder of this user alone"):
        made(tmp_path)


def aged(folder: NodeFolder, by_s: float) -> None:
    at = time.time() - by_s
    for path in (*folder.path.iterdir(), folder.path):
        os.utime(path, (at, at))


def test_what_nobody_comes_back_for_is_swept(tmp_path: Path) -> None:
    old, younger, used = (made(tmp_path, group) for group in ("old", "younger", "used"))
    for folder in (old, used):
        aged(folder, OLD_S + 1)
    aged(younger, OLD_S - 60)
    for folder in (old, younger):
        folder.close(remove=False)
    remove_stale_folders(PREFIX, tmp_path, OLD_S)
    assert {*tmp_path.iterdir()} == {younger.path, used.path}
    used.close(remove=True)


def test_two_jobs_on_a_host_do_not_meet(tmp_path: Path) -> None:
    folders = [made(tmp_path, "g", "a"), made(tmp_path, "h", "a"), made(tmp_path, "g", "b")]
    folders.append(NodeFolder(tmp_path, "g", "a", ["http://another:1"]))
    assert len({folder.path for folder in folders}) == 4
    with pytest.raises(OSError, match="another agent of this node uses"):
        made(tmp_path)
    for folder in folders:
        folder.close(remove=True)


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("64G", 64 << 30),
        ("500m", 500 << 20),
        ("1.5TiB", 3 << 39),
        ("0", 0),
        ("off", 0),
        ("7", 7),
        ("1 K", 1 << 10),
    ],
)
def test_sizes_are_read(text: str, bytes_: int) -> None:
    assert asked("--snapshot-memory", text).memory == bytes_


def test_what_is_free_in_a_tmpfs_is_what_it_and_the_machine_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier agent has left counts as free."""
    stats = Namespace(f_frsize=1, f_bavail=32 << 30)
    monkeypatch.setattr(os, "statvfs", lambda folder: stats)
    monkeypatch.setattr(hook, "read_free_memory", lambda: 24 << 30)
    assert hook.free_space(tmp_path) == 24 << 30
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "shared.bin").write_bytes(bytes(1 << 20))
    stats.f_bavail = 0
    assert hook.free_space(tmp_path) == 1 << 20


def asked(*flags: str, **environ: str) -> SnapshotOptions:
    return parse_command_line(["--server", "http://h:1", *flags, "train.py"], environ).snapshots


def test_flags_count_more_than_variables() -> None:
    made = asked(
        "--snapshot-every-s", "64", HET_SNAPSHOT_EVERY_S="8", HET_SNAPSHOT_MEMORY="1G", HET_SNAPSHOT_DIR="/d"
    )
    assert (made.every_s, made.memory, str(made.dir)) == (64, 1 << 30, "/d")
    assert (asked().every_s, asked().memory, asked().dir) == (30, None, None)


@pytest.mark.parametrize(
    ("flags", "environ", "words"),
    [
        (["--snapshot-every-s", "often"], {}, "--snapshot-every-s: give a whole number"),
        ([], {"HET_SNAPSHOT_EVERY_S": "0"}, "HET_SNAPSHOT_EVERY_S=0: give a whole number"),
        (["--snapshot-memory", "some"], {}, "--snapshot-memory: not a size"),
        (["--snapshot-memory", "-1"], {}, "not a size such as 64G"),
        (["--snapshot-to", "s3://bucket/d"], {}, "--snapshot-to: a URL is no directory: mount the bucket"),
        (["--snapshot-keep", "9"], {}, "nothing is written without --snapshot-to"),
        (["--snapshot-to", "d", "--snapshot-memory", "off"], {}, "--snapshot-memory turns them off"),
    ],
)
def test_what_makes_no_sense_is_refused(flags: list[str], environ: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        asked(*flags, **environ)


def placed(
    folder: Path, said: list[str], offered: list[SnapshotInventory] | None = None, **environ: str
) -> Any:
    """What a node makes of its flags, tells the terminal and offers to the server."""
    offered = [] if offered is None else offered
    identity = AgentIdentity("g", "a", "1")
    options = Namespace(standalone=True, spec={})
    line: Any = Namespace(
        update_offer=lambda **fields: offered.append(fields["snapshots"]),
        session=Namespace(newest_directive=Namespace(outcome=None, kind=None)),
    )
    node: Any = Namespace(
        identity=identity,
        options=options,
        access=Namespace(servers=SERVERS, client=None),
        tell=said.append,
        launch=Namespace(one_per_node=False),
        hold_port=None,
    )
    return make_snapshot_hook(
        node, asked(*(["--snapshot-dir", str(folder)] if not environ else []), **environ), line
    )


def test_where_there_is_no_place_there_are_no_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    offered: list[SnapshotInventory] = []
    monkeypatch.setattr(setup, "SHM", str(tmp_path / "nowhere"))
    assert placed(tmp_path, said, offered, HET_SNAPSHOT_EVERY_S="8") is None
    assert len(said) == 1
    assert said[0].startswith("no snapshots on this node: [Errno 2]")
    assert offered[0].disabled_reason.startswith("[Errno 2]"), "hetctl describe says so, too"
    with pytest.raises(UsageError, match=r"--snapshot-dir .*/nowhere: No such file or directory"):
        placed(tmp_path / "nowhere", [])
    assert placed(tmp_path, [], HET_SNAPSHOT_DIR=str(tmp_path), HET_SNAPSHOT_MEMORY="off") is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--snapshot-to .*/file: File exists"):
        placed(tmp_path, [], HET_SNAPSHOT_TO=str(tmp_path / "file"), HET_SNAPSHOT_DIR=str(tmp_path))


def test_a_node_whose_folder_another_agent_uses_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    offered: list[SnapshotInventory] = []
    monkeypatch.setattr(setup, "SHM", str(tmp_path))
    first = placed(tmp_path, said)
    assert placed(tmp_path, said, offered, HET_SNAPSHOT_EVERY_S="8") is None
    assert said[0].endswith(": waiting up to 0 s for it to end")
    assert said[1].startswith("no snapshots on this node: another agent of this node uses")
    assert said[1].endswith(offered[-1].disabled_reason), "so that `hetctl describe` says it"
    first.close()
    first.leave(None, lambda: False)
    assert list(tmp_path.iterdir()) == []


def test_the_next_agent_of_a_node_waits_for_one_that_leaves(tmp_path: Path) -> None:
    said: list[str] = []
    first = NodeFolder(tmp_path, "g", "a", SERVERS)
    (first.path / "kept").touch()
    first.mark_leaving()
    leaving = threading.Timer(0.5, first.close, kwargs={"remove": False})
    leaving.start()
    second = NodeFolder(tmp_path, "g", "a", SERVERS, said.append)
    assert (second.path / "kept").exists()
    (text,) = said
    assert text.startswith("another agent of this node uses ")
    assert text.endswith(": waiting up to 600 s for it to end")
    with pytest.raises(BlockingIOError):  # it does not leave
        NodeFolder(tmp_path, "g", "a", SERVERS, said.append)
    second.close(remove=True)
    leaving.join()


def test_a_node_does_not_sweep_away_its_own(tmp_path: Path) -> None:
    """Its job stood still for long, over a weekend perhaps."""
    first = placed(tmp_path, [], HET_SNAPSHOT_DIR=str(tmp_path))
    path = first._folder.path
    (path / "kept").touch()
    first.close()
    first._folder.close(remove=False)
    for each in (*path.glob("*"), path):
        os.utime(each, (0, 0))
    second = placed(tmp_path, [], HET_SNAPSHOT_DIR=str(tmp_path))
    assert (path / "kept").exists()
    second.close()
    second._folder.close(remove=True)
