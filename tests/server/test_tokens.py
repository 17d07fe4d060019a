"""Tokens in files and in the environment, mistakes in them, new ones, and which host names are trusted without."""

import logging
import os
import resource
from pathlib import Path

import pytest

from hetrdzv.auth.files import TokenFileError, find_client_token, read_token, reread_token, warn_if_exposed
from hetrdzv.auth.hosts import is_trusted_host
from hetrdzv.auth.token_files import TokenFile, ensure_token_file, parse_token_file
from hetrdzv.auth.tokens import FULL_GRANT, Grant, Role, Tokens
from hetrdzv.cli.hetserver import default_state_directory
from tests.support.certificates import put_file

LONG = "0123456789abcdef-secret"
PATH = Path("tokens")
FORM = "write TOKEN ROLE [group=PATTERN], with a token of ASCII characters and the role read, agent or admin"


def test_one_bare_token_or_lines_with_roles_and_patterns() -> None:
    assert parse_token_file(f"\n# mine\n  {LONG}  # and this\n", PATH) == {LONG: FULL_GRANT}
    text = f"{LONG}1 admin\n\n{LONG}#2\tagent  group=team-[ab]-*  # a and b\n{LONG}3 read group=x?\n"
    assert parse_token_file(text, PATH) == {
        f"{LONG}1": Grant(Role.ADMIN),
        f"{LONG}#2": Grant(Role.AGENT, "team-[ab]-*"),
        f"{LONG}3": Grant(Role.READ, "x?"),
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must hold one token, or lines TOKEN ROLE [group=PATTERN], but is empty"),
        ("# only\n  # comments\n", "is empty"),
        (f"{LONG} read\n#\n{LONG} admin", "line 3: the same token is in a line before"),
        (f"{LONG}1 read\n\n{LONG}", f"line 3: {FORM}"),
        *(
            (line, f"line 1: {FORM}")
            for line in (
                f"{LONG} admni",
                f"{LONG} {LONG}2",
                f"admin {LONG}",
                f"group=a {LONG}",
                f"{LONG} read group=a group=b",
                f"{LONG} read team-a-*",
                f"{LONG} read group=",
                f"{LONG}ä",
            )
        ),
    ],
)
def test_what_is_wrong_is_told_by_its_line_and_never_shown(text: str, says: str) -> None:
    with pytest.raises(TokenFileError) as error:
        parse_token_file(text, PATH)
    assert says in str(error.value)
    assert "token file tokens" in str(error.value)
    assert "secret" not in str(error.value)


def test_a_pattern_covers() -> None:
    grant = Grant(Role.READ, "team-[ab]-*")
    assert all(grant.covers(group) for group in ("team-a-", "team-b-x"))
    assert not any(grant.covers(group) for group in ("team-a", "Team-a-x", "xteam-a-x", "team-c-x"))


def test_a_token_is_found_by_its_whole_self() -> None:
    tokens = Tokens({f"{LONG}{n}": Grant(Role.READ, f"g{n}") for n in range(3)})
    assert tokens.grant(f"{LONG}1") == Grant(Role.READ, "g1")
    for other in ("", LONG, f"{LONG}12", f"{LONG}1 ", f"{LONG}ä"):
        assert tokens.grant(other) is None
    assert LONG not in repr(vars(tokens))


def test_short_tokens_and_open_files_are_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    TokenFile(put_file(tmp_path / "tokens", "sesame read\n", 0o640))
    assert "line 1: a token of 6 characters can be guessed" in caplog.text
    assert "can be read by other users" in caplog.text
    assert "sesame" not in caplog.text


def test_a_file_is_reloaded_only_when_it_has_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "tokens"
    put_file(path, f"{LONG}1")
    tokens = TokenFile(path)
    tokens.refresh()
    assert caplog.text == ""
    stat = os.stat(path)
    put_file(path, f"{LONG}2")
    os.utime(
        path, ns=(stat.st_atime_ns, stat.st_mtime_ns)
    )  # the same size and time: another file all the same
    tokens.refresh()
    assert [tokens.grant(f"{LONG}{n}") for n in (1, 2)] == [None, FULL_GRANT]
    put_file(path, f"{LONG}2 read group=a-*")
    tokens.refresh()
    assert tokens.grant(f"{LONG}2") == Grant(Role.READ, "a-*")
    assert f"reloaded token file {path}: 1 valid" in caplog.text
    assert "secret" not in caplog.text


def test_a_full_disk_leaves_no_empty_file(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(TokenFileError, match="cannot be written"):
            ensure_token_file(tmp_path / "token")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "token").exists()


# -- one token of a client, and none ------------------------------------------------------------------------


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
    assert ensure_token_file(path)
    token = read_token(path)
    assert len(token) >= 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not ensure_token_file(path)
    assert read_token(path) == token


@pytest.mark.parametrize(
    ("mode", "open_to_others"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True), (0o620, True)]
)
def test_a_token_that_others_can_read_is_warned_about_and_refused_where_it_was_made(
    tmp_path: Path, mode: int, open_to_others: bool
) -> None:
    path = put_file(tmp_path / "token", "secret\n", mode)
    said: list[str] = []
    warn_if_exposed("token file", path, said.append)
    warning = f"token file {path} can be read by other users of this machine: chmod 600 {path}"
    assert said == ([warning] if open_to_others else [])
    try:
        assert not ensure_token_file(path)
        refused = ""
    except TokenFileError as error:
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
    path = put_file(tmp_path / "token", content)
    with pytest.raises(TokenFileError, match=what) as error:
        read_token(path)
    assert str(path) in str(error.value)
    assert "words" not in str(error.value)


def test_a_token_file_that_cannot_be_read_or_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenFileError, match="No such file or directory"):
        read_token(tmp_path / "none")
    with pytest.raises(TokenFileError, match="Is a directory"):
        read_token(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(
        TokenFileError, match=r"written \((Not a directory|File exists)\).*--token-file.*--host 127\.0\.0\.1"
    ):
        ensure_token_file(tmp_path / "file" / "token")


def test_a_client_takes_the_file_before_the_environment_and_reads_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for environment, token in ((None, None), ("", None), (" from-environment\n", "from-environment")):
        monkeypatch.delenv("HET_TOKEN", raising=False)
        if environment is not None:
            monkeypatch.setenv("HET_TOKEN", environment)
        assert find_client_token(None) == token
    path = put_file(tmp_path / "token", "from-file\n")
    assert find_client_token(path) == reread_token(path) == "from-file"
    for gone in (None, tmp_path / "none", put_file(tmp_path / "token", "two words")):
        assert reread_token(gone) is None


def test_a_token_that_is_the_name_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put_file(tmp_path / "token", "secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in (str(path), f"~/{path.name}"):
        monkeypatch.setenv("HET_TOKEN", given)
        with pytest.raises(
            TokenFileError, match=f"HET_TOKEN is the name of a file.*--token-file {path}"
        ) as error:
            find_client_token(None)
        assert "secret" not in str(error.value)


def test_where_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert default_state_directory() == Path("/var/state/hetrdzv")
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", ignored)
        assert default_state_directory() == Path("/home/someone/.local/state/hetrdzv")
