"""New files in folders, as the kernel tells of them."""

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetagent.node.created import Created


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "one", tmp_path / "two"]
    for folder in made:
        folder.mkdir()
    return made


@pytest.fixture
def created(folders: list[Path]) -> Iterator[Created]:
    made = Created(*map(str, folders))
    yield made
    made.close()


def news(created: Created) -> bool:
    there_is = bool(select.select([created], [], [], 0)[0])
    created.clear()
    return there_is


def test_new_files_of_all_folders_are_noticed(created: Created, folders: list[Path]) -> None:
    assert not news(created)
    for folder in folders:
        (folder / "new").touch()
        assert news(created)
        assert not news(created)


def test_files_are_noticed_again_once_they_are_complete(created: Created, folders: list[Path]) -> None:
    with (folders[0] / "new").open("w") as file:
        assert news(created)
        file.write("all of it")
        file.flush()
        assert not news(created)
    assert news(created)
    os.replace(folders[0] / "new", folders[0] / "name")
    assert news(created)


def test_a_folder_that_is_not_there_is_an_error(folders: list[Path]) -> None:
    with pytest.raises(FileNotFoundError):
        Created(str(folders[0]), str(folders[0] / "nowhere"))
