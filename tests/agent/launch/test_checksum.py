"""By which scripts of the same name are told apart."""

import os
from pathlib import Path

from hetagent.launch import command
from hetagent.launch.command import identify_script


def of(path: Path, **more: bool) -> str:
    return identify_script(str(path), **{"module": False, "no_python": False, **more})[1]


def test_scripts_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name, content in (("a", "1"), ("b", "2"), ("c", "1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(content)
    one, other, same = (of(tmp_path / name / "train.py") for name in "abc")
    assert one == same != other
    for how in ({"no_python": True}, {"module": True}):
        assert of(tmp_path / "a" / "train.py", **how) == ""
    os.mkfifo(tmp_path / "pipe.py")  # can be read once
    (tmp_path / "large.pyz").touch()
    os.truncate(tmp_path / "large.pyz", command.MOST_BYTES + 1)
    for name in ("a", "nowhere.py", "pipe.py", "large.pyz"):
        assert of(tmp_path / name) == ""
