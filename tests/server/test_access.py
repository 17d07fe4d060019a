"""Tokens in files and in the environment, and which host names are trusted without one."""

from pathlib import Path

import pytest

from hetrdzv.auth.client_token import client_token, read_token, reread_token
from hetrdzv.auth.files import AccessError
from hetrdzv.auth.hosts import is_trusted_host
from hetrdzv.auth.token_files import require_token_file
from hetrdzv.cli.hetserver import state_home


def token_file(folder: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("trusted", "hosts"),
    [
        (True, ("", "localhost", "LocalHost:29400 ", "localhost.", "a.localhost:1")),
        (True, ("10.1.2.3:29400", "[::1]", "[fe80::1%eth0]:1")),
        (False, ("evil.example", "evil.example:29400", "localhost.evil.example", "127.0.0.1.evil.example")),
        (False, ("evil.example:127.0.0.1", "[::1].evil.example", "127.0.0.1@evil.example", "::1:80:x")),
        (False, ("notlocalhost",)),
    ],
)
def test_addresses_and_localhost_are_trusted_and_no_other_names(
    trusted: bool, hosts: tuple[str, ...]
) -> None:
    assert [host for host in hosts if is_trusted_host(host) != trusted] == []


def test_a_token_is_made_once_in_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "new" / "token"
    assert require_token_file(path)
    token = read_token(path)
    assert len(token) >= 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not require_token_file(path)
    assert read_token(path) == token


@pytest.mark.parametrize(
    ("mode", "open_to_others"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True), (0o620, True)]
)
def test_a_token_that_others_can_read_is_warned_about_and_refused_where_it_was_made(
    tmp_path: Path, mode: int, open_to_others: bool
) -> None:
    path = token_file(tmp_path, "secret\n", mode)
    said: list[str] = []
    assert client_token(path, said.append) == "secret"
    warning = f"token file {path} can be read by other users of this machine: chmod 600 {path}"
    assert said == ([warning] if open_to_others else [])
    try:
        assert not require_token_file(path)
        refused = ""
    except AccessError as error:
        refused = str(error)
    assert (f"chmod 600 {path}" in refused) is open_to_others
    assert "secret" not in refused


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("two words", "holds more than that"),
        ("two\nlines\n", "holds more than that"),
        ("schlüssel", "holds more than that"),
        (b"\xff\xfe", "it is not text"),
    ],
)
def test_a_file_that_holds_no_token_is_refused_without_showing_it(
    tmp_path: Path, content: str | bytes, what: str
) -> None:
    path = token_file(tmp_path, content)
    with pytest.raises(AccessError, match=what) as error:
        read_token(path)
    assert str(path) in str(error.value)
    assert "words" not in str(error.value)


def test_a_token_file_that_cannot_be_read_or_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="No such file or directory"):
        read_token(tmp_path / "none")
    with pytest.raises(AccessError, match="Is a directory"):
        read_token(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(
        AccessError, match=r"written \((Not a directory|File exists)\).*--token-file.*--host 127\.0\.0\.1"
    ):
        require_token_file(tmp_path / "file" / "token")


def test_a_client_takes_the_file_before_the_environment_and_reads_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for environment, token in ((None, None), ("", None), (" from-environment\n", "from-environment")):
        monkeypatch.delenv("HET_TOKEN", raising=False)
        if environment is not None:
            monkeypatch.setenv("HET_TOKEN", environment)
        assert client_token(None) == token
    path = token_file(tmp_path, "from-file\n")
    assert client_token(path) == reread_token(path) == "from-file"
    for gone in (None, tmp_path / "none", token_file(tmp_path, "two words")):
        assert reread_token(gone) is None


def test_a_token_that_is_the_name_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = token_file(tmp_path, "secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in (str(path), f"~/{path.name}"):
        monkeypatch.setenv("HET_TOKEN", given)
        with pytest.raises(
            AccessError, match=f"HET_TOKEN is the name of a file.*--token-file {path}"
        ) as error:
            client_token(None)
        assert "secret" not in str(error.value)


def test_where_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert state_home() == Path("/var/state/hetrdzv")
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", ignored)
        assert state_home() == Path("/home/someone/.local/state/hetrdzv")
