"""Which tokens a server takes, and what each may do: the token file, read anew when it changes."""

import hashlib
import hmac
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase
from pathlib import Path

from hetrdzv import access
from hetrdzv.access import AccessError

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 20
"""No token file is larger."""

SHORT = 16
"""A token of fewer characters can be guessed; the log says so."""


class Role(IntEnum):
    """What a token is for; each may do what those before it may."""

    READ = 1
    AGENT = 2
    ADMIN = 3

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Grant:
    """What whoever bears a token may do.

    Attributes:
        role: in the groups of the scope.
        scope: shell pattern of the ids of those groups; None: all of them, and what concerns the whole server.
    """

    role: Role
    scope: str | None = None

    def covers(self, group_id: str) -> bool:
        """Whether a group is in the scope."""
        return self.scope is None or fnmatchcase(group_id, self.scope)

    def __str__(self) -> str:
        where = f", its groups are {self.scope}" if self.scope is not None else ""
        return f"role is {self.role}{where}"


EVERYTHING = Grant(Role.ADMIN)
"""What everybody may do where no token is asked for."""


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes
    grant: Grant


class Tokens:
    """The tokens that a server takes.

    Args:
        entries: each token with its grant.
    """

    def __init__(self, entries: dict[str, Grant]) -> None:
        self._entries = [_Entry(_digest(token), grant) for token, grant in entries.items()]

    def find(self, given: str) -> Grant | None:
        """The grant of a token, or None: as long for each token, in a time that tells nothing of any of them."""
        digest, found = _digest(given), None
        for entry in self._entries:
            if hmac.compare_digest(entry.digest, digest):
                found = entry.grant
        return found

    def refresh(self, *, now: bool = False) -> None:
        """Look whether they have changed."""


class TokenFile(Tokens):
    """The tokens in a file. One that cannot be used is told in the log, and what was there before stays.

    Args:
        path: of the file.

    Raises:
        AccessError: the file cannot be used; names the line, never a token.
    """

    def __init__(self, path: Path) -> None:
        super().__init__({})
        self._path = path
        self._complaint = ""
        self._stamp: tuple[int, ...] | None = None
        self._stamp, self._entries = self._load()

    def refresh(self, *, now: bool = False) -> None:
        """Read the file anew if it is another one than last time.

        Args:
            now: read it in any case.
        """
        try:
            if not now and stamp_of(os.stat(self._path)) == self._stamp:
                return
            self._stamp, entries = self._load()
        except AccessError as error:
            self._complain(str(error))
            return
        except OSError as error:
            self._stamp = None
            self._complain(f"token file {self._path} cannot be read: {error.strerror}")
            return
        self._complaint = ""
        before = {(entry.digest, entry.grant) for entry in self._entries}
        after = {(entry.digest, entry.grant) for entry in entries}
        self._entries = entries
        if now or before != after:
            logger.info(
                "token file %s was read anew: %d tokens, %d of them new, %d gone or changed",
                self._path,
                len(after),
                len(after - before),
                len(before - after),
            )

    def _load(self) -> tuple[tuple[int, ...], list[_Entry]]:
        try:
            with open(self._path, "rb") as file:
                stamp = stamp_of(os.fstat(file.fileno()))
                content = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            self._stamp = None
            raise AccessError(f"token file {self._path} cannot be read: {error.strerror}") from None
        self._stamp = stamp  # of a broken one, too: it is not tried again until it changes
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise AccessError(f"token file {self._path} cannot be read: it is not text") from None
        found = parse(text, self._path)
        if not access.is_private(self._path):
            logger.warning("token file %s can be read by other users of this machine", self._path)
        return stamp, [_Entry(_digest(token), grant) for token, grant in found.items()]

    def _complain(self, what: str) -> None:
        if what != self._complaint:
            self._complaint = what
            logger.error("%s; the tokens known before stay in force", what)


def stamp_of(stat: os.stat_result) -> tuple[int, ...]:
    """What changes when a file does."""
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def parse(text: str, path: Path) -> dict[str, Grant]:
    """The tokens of a file and their grants.

    One bare token may do everything. Else each line is `TOKEN ROLE [group=PATTERN]`; `#` begins a comment.

    Raises:
        AccessError: says what is wrong in which line, without any word of it.
    """
    if len(text) > MAX_FILE_BYTES:
        raise AccessError(
            f"token file {path} holds more than {MAX_FILE_BYTES >> 20} MiB: is it the right one?"
        )
    lines = list(_lines(text))
    if not lines:
        raise AccessError(
            f"token file {path} must hold one token, or lines TOKEN ROLE [group=PATTERN], but is empty: "
            f"write one into it, for example with openssl rand -hex 32"
        )
    found: dict[str, Grant] = {}
    first_line: dict[str, int] = {}
    for number, words in lines:
        try:
            token = _token(words[0])
            if token in found:
                raise ValueError(f"it has the same token as line {first_line[token]}: keep one of the two")
            if len(words) == 1 and len(lines) > 1:
                raise ValueError("it has no role: say which behind the token (read, agent or admin)")
            found[token] = _grant(words[1:]) if len(words) > 1 else EVERYTHING
            first_line[token] = number
        except ValueError as error:
            raise AccessError(f"token file {path}, line {number}: {error}") from None
        if len(token) < SHORT:
            logger.warning("token file %s, line %d: a token of %d characters can be guessed; make one with "
                           "openssl rand -hex 32", path, number, len(token))  # fmt: skip
    return found


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """The words of every line that has any, with its number."""
    for number, line in enumerate(text.splitlines(), 1):
        words = re.sub(r"(^|\s)#.*", "", line).split()
        if words:
            yield number, words


def _token(word: str) -> str:
    if not access.is_token(word):
        raise ValueError("its token has other characters than ASCII's letters, digits and signs")
    if word in [str(role) for role in Role] or word.startswith("group="):
        raise ValueError("it does not begin with a token: TOKEN ROLE [group=PATTERN]")
    return word


def _grant(words: list[str]) -> Grant:
    roles = {str(role): role for role in Role}
    if words[0] not in roles:
        raise ValueError("its second word is no role: read, agent or admin")
    if len(words) > 2:
        raise ValueError("it holds more than that: TOKEN ROLE [group=PATTERN]")
    if len(words) == 1:
        return Grant(roles[words[0]])
    name, equals, pattern = words[1].partition("=")
    if name != "group" or not equals:
        raise ValueError("its third word is not group=PATTERN")
    return Grant(roles[words[0]], _pattern(pattern))


def _pattern(pattern: str) -> str:
    """A shell pattern of group ids.

    Raises:
        ValueError: it can match none, or bounds nothing.
    """
    bare = re.sub(r"\[!?\]?[A-Za-z0-9._-]*\]", "x", pattern)
    if not re.fullmatch(r"[A-Za-z0-9._*?-]+", bare) or len(pattern) > 256:
        raise ValueError(
            "its pattern can match no group: ids have letters, digits, '.', '_' and '-'; "
            "* stands for any text, ? for one character, [ab] for one of these"
        )
    if not re.sub(r"\[[^\]]*\]|[*?]", "", pattern):
        raise ValueError(
            "its pattern bounds nothing: begin with a part of the ids (group=team-a-*), or leave it out"
        )
    return pattern


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
