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

from hetagent.cli.parse import parse
from hetagent.context import Identity
from hetagent.errors import UsageError
from hetagent.options import parts
from hetagent.options.parts import SnapshotOptions
from hetagent.snapshots.node import folder as folders
from hetagent.snapshots.node import space
from hetagent.snapshots.node.folder import EMPTY_S, OLD_S, Folder, sweep
from hetagent.snapshots.node.start import snapshots_of
from hetrdzv.protocol.rooms.snapshots import Holdings

SERVERS = ["http://s:1"]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "WAIT_S", 0.2)


def made(parent: Path, group: str = "g", node_id: str = "a") -> Folder:
    return Folder(parent, group, node_id, SERVERS)


def test_only_this_user_may_enter_it(tmp_path: Path) -> None:
    folder = made(tmp_path)
    assert folder.path.parent == tmp_path
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.close(remove=True)
    folder.close(remove=False)  # harmless
    assert list(tmp_path.iterdir()) == []


def test_two_jobs_on_a_host_do_not_meet(tmp_path: Path) -> None:
    folders = [made(tmp_path, "g", "a"), made(tmp_path, "h", "a"), made(tmp_path, "g", "b")]
    folders.append(Folder(tmp_path, "g", "a", ["http://another:1"]))
    assert len({folder.path for folder in folders}) == 4
    with pytest.raises(OSError, match="another agent uses"):
        made(tmp_path)
    for folder in folders:
        folder.close(remove=True)


def test_the_next_agent_finds_what_a_killed_one_has_left(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from hetagent.snapshots.node.folder import Folder\n"
        f"(Folder(Path(sys.argv[1]), 'g', 'a', {SERVERS!r}).path / 'kept').touch(); print(flush=True); time.sleep(99)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        first.stdout.readline()
        with pytest.raises(OSError, match="another agent uses"):
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


def aged(folder: Folder, by_s: float) -> None:
    at = time.time() - by_s
    for path in (*folder.path.iterdir(), folder.path):
        os.utime(path, (at, at))


def test_what_nobody_comes_back_for_is_swept(tmp_path: Path) -> None:
    old, younger, empty, fresh, used, unsaved = (
        made(tmp_path, group) for group in ("old", "younger", "empty", "fresh", "used", "unsaved")
    )
    for folder in (old, younger, used, unsaved):
        (folder.path / "slots.json").touch()
    (unsaved.path / "unsaved.json").touch()
    for folder in (old, used, unsaved):
        aged(folder, OLD_S + 1)
    for folder, age_s in ((younger, OLD_S - 60), (empty, EMPTY_S + 1)):
        aged(folder, age_s)
    for folder in (old, younger, empty, fresh, unsaved):
        folder.close(remove=False)
    sweep(tmp_path)
    assert {*tmp_path.iterdir()} == {younger.path, fresh.path, used.path, unsaved.path}
    used.close(remove=True)


# -- what it may take ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64G", 64 << 30),
        ("500m", 500 << 20),
        ("1.5TiB", 3 << 39),
        ("0", 0),
        ("off", 0),
        ("7", 7),
        ("1 K", 1 << 10),
        ("", None),
        ("-1", None),
        ("many", None),
    ],
)
def test_sizes_are_read(text: str, size: int | None) -> None:
    if size is not None:
        assert space.parsed(text) == size
    else:
        with pytest.raises(ValueError, match="not a size such as 64G"):
            space.parsed(text)


def on(monkeypatch: pytest.MonkeyPatch, kind: str, size: int, free: int) -> None:
    """The folder of the test is on such a file system."""
    monkeypatch.setattr(space, "_file_system", lambda folder: kind)
    monkeypatch.setattr(os, "statvfs", lambda folder: Namespace(f_frsize=1, f_blocks=size, f_bavail=free))


def test_half_of_what_is_free_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "tmpfs", 64 << 30, 32 << 30)
    monkeypatch.setattr(space, "free_memory", lambda: 24 << 30)
    assert space.space(tmp_path, None) == space.Space(12 << 30)
    assert space.space(tmp_path, 20 << 30) == space.Space(20 << 30)


def test_what_an_earlier_agent_has_left_counts_as_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, "tmpfs", 64 << 30, 0)
    monkeypatch.setattr(space, "free_memory", lambda: 24 << 30)
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "shared.bin").write_bytes(bytes(1 << 20))
    assert space.space(tmp_path, None).memory == 1 << 19


@pytest.mark.parametrize(
    ("kind", "size", "given", "words"),
    [
        ("tmpfs", 64 << 20, None, ["has only 64 MiB", "--shm-size", "medium: Memory"]),
        ("ext4", 64 << 30, None, ["is no tmpfs", "--snapshot-dir"]),
        ("tmpfs", 64 << 30, 100 << 30, ["only 64 GiB are free", "--snapshot-memory 100 GiB"]),
    ],
)
def test_what_is_wrong_with_the_place_is_said_with_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, size: int, given: int | None, words: list[str]
) -> None:
    on(monkeypatch, kind, size, size)
    monkeypatch.setattr(space, "free_memory", lambda: 1 << 40)
    problem = space.space(tmp_path / "folder", given).problem
    assert [word for word in words if word not in problem] == []
    assert str(tmp_path) in problem


def test_a_real_file_system_is_looked_at() -> None:
    found = space.space(Path("/dev/shm"), None)
    assert "is no tmpfs" not in found.problem
    assert "is no tmpfs" in space.space(Path("/proc/tty"), None).problem


# -- flags -----------------------------------------------------------------------------------------------------


def asked(*flags: str, **environ: str) -> SnapshotOptions:
    return parse(["--server", "http://h:1", *flags, "train.py"], environ).snapshots


def test_flags_count_more_than_variables() -> None:
    made = asked(
        "--snapshot-every-s", "64", HET_SNAPSHOT_EVERY_S="8", HET_SNAPSHOT_MEMORY="1G", HET_SNAPSHOT_DIR="/d"
    )
    assert (made.every_s, made.memory, str(made.folder)) == (64, "1G", "/d")
    assert (asked().every_s, asked().memory, str(asked().folder)) == (30, None, "/dev/shm")


@pytest.mark.parametrize(
    ("flags", "environ", "words"),
    [
        (["--snapshot-every-s", "often"], {}, "--snapshot-every-s often: give a number of seconds"),
        ([], {"HET_SNAPSHOT_EVERY_S": "0"}, "HET_SNAPSHOT_EVERY_S 0: give a number of seconds"),
        (["--snapshot-to", "d", "--snapshot-keep", "0"], {}, "--snapshot-keep 0: give a number"),
        (["--snapshot-to", "sftp://me:sesame@host/d"], {}, "--snapshot-to: no password in a URL"),
        (["--snapshot-to", "zz://d"], {}, "--snapshot-to zz://d: Unsupported filesystem: 'zz'; pip install"),
        (
            ["--snapshot-to-every-s", "9"],
            {},
            "--snapshot-to-every-s: nothing is written without --snapshot-to",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(flags: list[str], environ: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        asked(*flags, **environ)


def test_off_makes_nothing(tmp_path: Path) -> None:
    nobody: Any = None
    for size in ("off", "0"):
        assert (
            snapshots_of(nobody, asked("--snapshot-memory", size, "--snapshot-dir", str(tmp_path)), nobody)
            is None
        )
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(
        UsageError, match="--snapshot-to needs snapshots, and --snapshot-memory turns them off"
    ):
        snapshots_of(nobody, asked("--snapshot-memory", "off", "--snapshot-to", str(tmp_path)), nobody)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--snapshot-to .*/file: File exists"):
        snapshots_of(nobody, asked("--snapshot-to", str(tmp_path / "file")), nobody)
    with pytest.raises(UsageError, match="--snapshot-memory: 'some' is not a size"):
        snapshots_of(nobody, asked("--snapshot-memory", "some"), nobody)


def placed(folder: Path, said: list[str], offered: list[Holdings] | None = None, **environ: str) -> Any:
    """What a node makes of its flags, tells the terminal and offers to the server."""
    offered = [] if offered is None else offered
    identity = Identity("g", "a", "1")
    options = Namespace(standalone=True, spec={})
    line: Any = Namespace(offers=lambda **fields: offered.append(fields["snapshots"]))
    node: Any = Namespace(
        identity=identity,
        options=options,
        access=Namespace(servers=SERVERS),
        tell=said.append,
        launch=Namespace(one_per_node=False),
        hold_port=None,
    )
    return snapshots_of(
        node, asked(*(["--snapshot-dir", str(folder)] if not environ else []), **environ), line
    )


def test_a_place_that_was_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--snapshot-dir .*/nowhere: No such file or directory"):
        placed(tmp_path / "nowhere", [])


def test_where_there_is_no_place_there_are_no_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    offered: list[Holdings] = []
    monkeypatch.setattr(parts, "SHM", str(tmp_path / "nowhere"))
    assert placed(tmp_path, said, offered, HET_SNAPSHOT_EVERY_S="8") is None
    assert len(said) == 1
    assert said[0].startswith("no snapshots on this node: [Errno 2]")
    assert offered[0].not_taken.startswith("[Errno 2]"), "hetctl describe says so, too"


def test_a_node_whose_folder_another_agent_uses_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    offered: list[Holdings] = []
    monkeypatch.setattr(parts, "SHM", str(tmp_path))
    first = placed(tmp_path, said)
    assert placed(tmp_path, said, offered, HET_SNAPSHOT_EVERY_S="8") is None
    assert said[0].startswith(
        "waiting until the last agent of this node has ended, 0 s at most: another agent uses"
    )
    assert said[1].startswith("no snapshots on this node: another agent uses")
    assert f"(pid {os.getpid()})" in said[1]
    assert said[1].endswith(offered[-1].not_taken), "so that `hetctl describe` says it"
    first.close()
    first.leave(None, lambda: False)
    assert list(tmp_path.iterdir()) == []


def test_the_next_agent_of_a_node_waits_for_one_that_leaves(tmp_path: Path) -> None:
    said: list[str] = []
    first = Folder(tmp_path, "g", "a", SERVERS)
    first.leave()
    leaving = threading.Timer(0.5, first.close, kwargs={"remove": False})
    leaving.start()
    second = Folder(tmp_path, "g", "a", SERVERS, said.append)
    assert second.path == first.path
    (text,) = said
    assert text.startswith(
        "waiting until the last agent of this node has ended, 600 s at most: another agent uses"
    )
    with pytest.raises(BlockingIOError):  # it does not leave
        Folder(tmp_path, "g", "a", SERVERS, said.append)
    second.close(remove=True)
    leaving.join()


def test_a_successor_has_what_its_predecessor_held_though_that_lives_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "WAIT_S", 30.0)
    first = made(tmp_path)
    (first.path / "kept").touch()
    ending = threading.Timer(0.5, first.close, kwargs={"remove": False})
    ending.start()
    second = made(tmp_path)
    assert (second.path / "kept").exists()
    second.close(remove=True)
    ending.join()


def test_a_node_does_not_sweep_away_its_own(tmp_path: Path) -> None:
    """Its job stood still for long, over a weekend perhaps."""
    first = placed(tmp_path, [], HET_SNAPSHOT_DIR=str(tmp_path))
    path = first._folder.path
    (path / "slots.json").write_text("{}")
    (path / "kept").touch()
    first.close()
    first._folder.close(remove=False)
    for each in (*path.glob("*"), path):
        os.utime(each, (0, 0))
    second = placed(tmp_path, [], HET_SNAPSHOT_DIR=str(tmp_path))
    assert (path / "kept").exists()
    second.close()
    second._folder.close(remove=True)


def test_it_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LEAVES_S", 0.3)
    first = Folder(tmp_path, "g", "a", SERVERS)
    first.leave()
    with pytest.raises(BlockingIOError, match="another agent uses"):
        Folder(tmp_path, "g", "a", SERVERS)
    first.close(remove=True)
