"""New files in folders, as the kernel tells of them."""

import contextlib
import os
import select
from pathlib import Path

import pytest

from hetagent.node.created import FileWatch


def test_files_are_noticed_when_they_are_made_when_they_are_complete_and_when_they_get_their_names(
    tmp_path: Path,
) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    with contextlib.closing(FileWatch(*map(str, folders))) as created:

        def news() -> bool:
            there_is = bool(select.select([created], [], [], 0)[0])
            created.clear()
            return there_is

        assert not news()
        for folder in folders:
            with (folder / "new").open("w") as file:
                assert news()
                file.write("all of it")
                file.flush()
                assert not news()
            assert news()
            os.replace(folder / "new", folder / "name")
            assert news()
    with pytest.raises(FileNotFoundError):
        FileWatch(str(folders[0]), str(folders[0] / "nowhere"))
