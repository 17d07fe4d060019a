"""The server's token file: parsed, reloaded when it changes, created if missing."""

import logging
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from hetrdzv.auth.client_token import read_token
from hetrdzv.auth.files import AccessError, Reloaded, exposed, is_private
from hetrdzv.auth.tokens import EVERYTHING, Grant, Role, Tokens, changed, entries, is_token

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 20
"""Largest token file that is read."""

SHORT = 16
"""Tokens with fewer characters can be guessed; the log says so."""


class TokenFile(Reloaded, Tokens):
    """The tokens in a file. If a changed file cannot be used, the log says so and the old tokens stay valid.

    Attributes:
        path: of the file.

    Raises:
        AccessError: the file cannot be used; names the line, never a token.
    """

    def __init__(self, path: Path) -> None:
        Reloaded.__init__(self, [path], "the previous tokens stay valid")
        self.path = path
        Tokens.__init__(self, self._load())

    def reload(self, *, now: bool) -> None:
        """Accept the tokens that are in the file now."""
        loaded = entries(self._load())
        added, removed = changed(self._entries, loaded)
        self._entries = loaded
        if now or added or removed:
            tokens = "1 token" if len(loaded) == 1 else f"{len(loaded)} tokens"
            news = f"{added} new, {removed} removed or changed"
            logger.info("reloaded token file %s: %s, %s", self.path, tokens, news)

    def _load(self) -> dict[str, Grant]:
        try:
            with open(self.path, "rb") as file:
                content = file.read(MAX_FILE_BYTES + 1).decode()
        except OSError as error:
            raise AccessError(f"token file {self.path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise AccessError(f"token file {self.path} cannot be read: it is not text") from None
        granted = parse(content, self.path)
        if (warning := exposed(self.path)) is not None:
            logger.warning("%s", warning)
        return granted


# -- what a file may hold ------------------------------------------------------------------------------------


def parse(text: str, path: Path) -> dict[str, Grant]:
    """The tokens of a file and their grants.

    Either one bare token, which may do everything, or lines `TOKEN ROLE [group=PATTERN]`. `#` begins a comment.

    Args:
        path: for error messages.

    Raises:
        AccessError: says what is wrong in which line, without quoting it.
    """
    if len(text) > MAX_FILE_BYTES:
        raise AccessError(
            f"token file {path} is larger than {MAX_FILE_BYTES >> 20} MiB: is it the right file?"
        )
    lines = list(_lines(text))
    if not lines:
        raise AccessError(
            f"token file {path} must hold one token, or lines TOKEN ROLE [group=PATTERN], but is empty: "
            f"write a token into it, for example with openssl rand -hex 32"
        )
    grants: dict[str, Grant] = {}
    first_line: dict[str, int] = {}
    for number, words in lines:
        try:
            token = _token(words[0])
            if token in grants:
                raise ValueError(f"the same token is in line {first_line[token]}: keep one of the two")
            if len(words) == 1 and len(lines) > 1:
                raise ValueError("the role is missing: write read, agent or admin after the token")
            grants[token] = _grant(words[1:]) if len(words) > 1 else EVERYTHING
            first_line[token] = number
        except ValueError as error:
            raise AccessError(f"token file {path}, line {number}: {error}") from None
        if len(token) < SHORT:
            logger.warning(
                "token file %s, line %d: a token of %d characters can be guessed; make a longer one with "
                "openssl rand -hex 32",
                path,
                number,
                len(token),
            )
    return grants


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """The number and the words of every line that has any."""
    for number, line in enumerate(text.splitlines(), 1):
        words = re.sub(r"(^|\s)#.*", "", line).split()
        if words:
            yield number, words


def _token(word: str) -> str:
    if not is_token(word):
        raise ValueError("the token may only have ASCII letters, digits and punctuation")
    if word in [str(role) for role in Role] or word.startswith("group="):
        raise ValueError("it does not begin with a token: write TOKEN ROLE [group=PATTERN]")
    return word


def _grant(words: list[str]) -> Grant:
    roles = {str(role): role for role in Role}
    if words[0] not in roles:
        raise ValueError("the second word is not a role: write read, agent or admin")
    if len(words) > 2:
        raise ValueError("it has too many words: write TOKEN ROLE [group=PATTERN]")
    if len(words) == 1:
        return Grant(roles[words[0]])
    name, equals, pattern = words[1].partition("=")
    if name != "group" or not equals:
        raise ValueError("the third word is not group=PATTERN")
    return Grant(roles[words[0]], _pattern(pattern))


def _pattern(pattern: str) -> str:
    """A shell pattern of group ids.

    Raises:
        ValueError: it can match no group, or matches them all.
    """
    bare = re.sub(r"\[!?\]?[A-Za-z0-9._-]*\]", "x", pattern)
    if not re.fullmatch(r"[A-Za-z0-9._*?-]+", bare) or len(pattern) > 256:
        raise ValueError(
            "the pattern can match no group: ids have letters, digits, '.', '_' and '-'; "
            "* stands for any text, ? for one character, [ab] for one of these"
        )
    if not re.sub(r"\[[^\]]*\]|[*?]", "", pattern):
        raise ValueError(
            "the pattern restricts nothing: begin with a part of the ids (group=team-a-*), or leave it out"
        )
    return pattern


# -- making one ----------------------------------------------------------------------------------------------


def require_token_file(path: Path) -> bool:
    """Make a token file unless there is one; either way only its owner can read it.

    Returns:
        whether it was made now.

    Raises:
        AccessError: it can be neither read nor written, or others can read it.
    """
    if path.exists():
        _require_private(path)
        return False
    return make_token(path)[1]


def make_token(path: Path) -> tuple[str, bool]:
    """Make a token in a file that only its owner can read; if there is one already, use that.

    Returns:
        the token, and whether it was made now.

    Raises:
        AccessError: the file can be neither read nor written, or others can read it.
    """
    token = secrets.token_urlsafe(32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = _create(path, token + "\n")
    except OSError as error:
        raise AccessError(
            f"token file {path} cannot be written ({error.strerror}): name a file that holds a token with "
            f"--token-file, or listen on loopback only (--host 127.0.0.1)"
        ) from None
    if made:
        return token, True
    kept = read_token(path)
    _require_private(path)
    return kept, False


def _create(path: Path, content: str) -> bool:
    """Make a file that only its owner can read; False if there is one."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
    except OSError:  # the disk is full: leave no empty file behind
        path.unlink(missing_ok=True)
        raise
    return True


def _require_private(path: Path) -> None:
    if not is_private(path):
        raise AccessError(
            f"token file {path} can be read by other users of this machine: remove it, so that a new token is "
            f"made (every node will need it), or keep this one with chmod 600 {path}"
        )
