"""By which scripts of the same name are told apart."""

import os
from pathlib import Path

from hetagent.launch import command
from hetagent.launch.command import checksum


def of(path: Path, **more: bool) -> str:
    return checksum(str(path), **{"module": False, "no_python": False, **more})


def test_scripts_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name, content in (("a", "1"), ("b", "2"), ("c", "1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(content)
    one, other, same = (of(tmp_path / name / "train.py") for name in "abc")
    assert one == same != other
    assert (
        of(tmp_path / "a" / "train.py", no_python=True) == of(tmp_path / "a" / "train.py", module=True) == ""
    )
    assert of(tmp_path / "a") == of(tmp_path / "nowhere.py") == ""


def test_what_can_be_read_once_is_left_to_the_worker(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.py")
    assert of(tmp_path / "train.py") == ""


def test_an_archive_does_not_keep_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "train.pyz"
    path.touch()
    os.truncate(path, command.MOST_BYTES + 1)
    assert of(path) == ""
