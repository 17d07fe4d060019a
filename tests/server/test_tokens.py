"""The token file: what it may hold, how mistakes are named, and when it is reloaded."""

import logging
import os
import resource
from pathlib import Path

import pytest

from hetrdzv.auth.files import AccessError
from hetrdzv.auth.token_files import TokenFile, parse, require_token_file
from hetrdzv.auth.tokens import EVERYTHING, Grant, Role, Tokens

LONG = "0123456789abcdef-secret"
PATH = Path("tokens")
FORM = "write TOKEN ROLE [group=PATTERN], with a token of ASCII characters and the role read, agent or admin"


def test_one_bare_token_or_lines_with_roles_and_patterns() -> None:
    assert parse(f"\n# mine\n  {LONG}  # and this\n", PATH) == {LONG: EVERYTHING}
    text = f"{LONG}1 admin\n\n{LONG}#2\tagent  group=team-[ab]-*  # a and b\n{LONG}3 read group=x?\n"
    assert parse(text, PATH) == {
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
    with pytest.raises(AccessError) as error:
        parse(text, PATH)
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
    path = tmp_path / "tokens"
    path.write_text("sesame read\n")
    path.chmod(0o640)
    TokenFile(path)
    assert "line 1: a token of 6 characters can be guessed" in caplog.text
    assert "can be read by other users" in caplog.text
    assert "sesame" not in caplog.text


def put(path: Path, text: str) -> None:
    """Another file in its place."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o600)
    new.replace(path)


def test_a_file_is_reloaded_only_when_it_has_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "tokens"
    put(path, f"{LONG}1")
    tokens = TokenFile(path)
    tokens.refresh()
    assert caplog.text == ""
    stat = os.stat(path)
    put(path, f"{LONG}2")
    os.utime(
        path, ns=(stat.st_atime_ns, stat.st_mtime_ns)
    )  # the same size and time: another file all the same
    tokens.refresh()
    assert [tokens.grant(f"{LONG}{n}") for n in (1, 2)] == [None, EVERYTHING]
    put(path, f"{LONG}2 read group=a-*")
    tokens.refresh()
    assert tokens.grant(f"{LONG}2") == Grant(Role.READ, "a-*")
    assert f"reloaded token file {path}: 1 valid" in caplog.text
    assert "secret" not in caplog.text


def test_a_full_disk_leaves_no_empty_file(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(AccessError, match="cannot be written"):
            require_token_file(tmp_path / "token")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "token").exists()
