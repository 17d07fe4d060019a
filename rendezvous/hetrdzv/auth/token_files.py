"""The server's token file: parsed, reloaded when it changes, created if missing."""

import logging
import os
import re
import secrets
from functools import partial
from pathlib import Path

from hetrdzv.auth.files import ReloadableFiles, TokenFileError, is_private, read_secret, warn_if_exposed
from hetrdzv.auth.tokens import FULL_GRANT, Grant, Role, Tokens

logger = logging.getLogger(__name__)

_TOKEN_LINE = re.compile("([!-~]+)(?: (read|agent|admin)(?: group=([^ ]+))?)?")

MIN_SAFE_TOKEN_CHARACTERS = 16
"""Tokens with fewer characters can be guessed; the log says so."""


class TokenFile(ReloadableFiles, Tokens):
    """The tokens in a file. If a changed file cannot be used, the log says so and the old tokens stay valid."""

    def __init__(self, path: Path) -> None:
        ReloadableFiles.__init__(self, [path], "the previous tokens stay valid")
        self.path = path
        Tokens.__init__(self, self._load())

    def reload(self) -> None:
        self.set_tokens(self._load())
        logger.info("reloaded token file %s: %d valid", self.path, len(self.grants))

    def _load(self) -> dict[str, Grant]:
        warn_if_exposed("token file", self.path)
        return parse_token_file(read_secret("token file", self.path), self.path)


def parse_token_file(text: str, path: Path) -> dict[str, Grant]:
    """The tokens of a file and their grants.

    Either one bare token, which may do everything, or lines `TOKEN ROLE [group=PATTERN]`. `#` begins a comment.

    Raises:
        TokenFileError: says what is wrong in which line, without quoting it.
    """
    numbered = (
        (number, re.sub(r"(^|\s)#.*", "", line).split()) for number, line in enumerate(text.splitlines(), 1)
    )
    lines = [(number, words) for number, words in numbered if words]
    if not lines:
        raise TokenFileError(
            f"token file {path} must hold one token, or lines TOKEN ROLE [group=PATTERN], but is empty: "
            f"write a token into it, for example with openssl rand -hex 32"
        )
    grants: dict[str, Grant] = {}
    for number, words in lines:
        where, match = f"token file {path}, line {number}", _TOKEN_LINE.fullmatch(" ".join(words))
        if match is None or (match[2] is None and len(lines) > 1):
            raise TokenFileError(
                f"{where}: write TOKEN ROLE [group=PATTERN], with a token of ASCII characters "
                f"and the role read, agent or admin"
            )
        token, role, scope = match.groups()
        if token in grants:
            raise TokenFileError(f"{where}: the same token is in a line before: keep one of the two")
        grants[token] = Grant(Role[role.upper()], scope) if role else FULL_GRANT
        if len(token) < MIN_SAFE_TOKEN_CHARACTERS:
            logger.warning(
                "%s: a token of %d characters can be guessed; make a longer one with openssl rand -hex 32",
                where,
                len(token),
            )
    return grants


def ensure_token_file(path: Path) -> bool:
    """Make a token file that only its owner can read, unless there is one; returns whether it was made now."""
    if path.exists():
        if not is_private(path):
            raise TokenFileError(
                f"token file {path} can be read by other users of this machine: remove it, so that a new token is "
                f"made (every node will need it), or keep this one with chmod 600 {path}"
            )
        return False
    is_made = False
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(path, "x", encoding="utf-8", opener=partial(os.open, mode=0o600)) as file:
            is_made = True
            file.write(secrets.token_urlsafe(32) + "\n")
    except OSError as error:
        if is_made:  # the disk is full: the next start would find an empty one
            path.unlink(missing_ok=True)
        raise TokenFileError(
            f"token file {path} cannot be written ({error.strerror}): name a file that holds a token with "
            f"--token-file, or listen on loopback only (--host 127.0.0.1)"
        ) from None
    return True
