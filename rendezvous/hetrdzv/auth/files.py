"""Files that hold secrets: who can read them, and whether they have changed; the one token that a client uses."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hetrdzv.auth.tokens import is_valid_token
from hetrdzv.protocol.errors import HetError

logger = logging.getLogger(__name__)


class TokenFileError(HetError, code="access"):
    """A token, or a file with tokens, that cannot be used."""


class ReloadableFiles:
    """Files that are read again when they have changed; if they cannot be used then, the log says what goes on."""

    def __init__(self, paths: Sequence[Path], goes_on: str) -> None:
        self._paths = paths
        self._goes_on = goes_on
        self._stamps = [_file_version(path) for path in paths]

    def reload(self) -> None:
        """Read the files; raises `HetError` if they cannot be used."""
        raise NotImplementedError

    def refresh(self, *, now: bool = False) -> None:
        """Reload the files if they have changed; `now`: in any case."""
        stamps = [_file_version(path) for path in self._paths]
        if stamps != self._stamps or now:
            self._stamps = stamps  # even if they cannot be used: they are not tried again until they change
            try:
                self.reload()
            except HetError as error:
                logger.error("%s; %s", error, self._goes_on)


def is_private(path: Path) -> bool:
    """Whether nobody but the owner of a file (and root) can read or write it; a missing file is private."""
    try:
        return path.stat().st_mode & 0o077 == 0
    except FileNotFoundError:
        return True


def read_secret(what: str, path: Path) -> str:
    """The text of a file with a secret."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise TokenFileError(f"{what} {path} cannot be read: {reason}") from None


def warn_if_exposed(what: str, path: Path, warn: Callable[[str], object] = logger.warning) -> None:
    """Warn of a file with a secret that other users can read."""
    if not is_private(path):
        warn(f"{what} {path} can be read by other users of this machine: chmod 600 {path}")


def _file_version(path: Path) -> tuple[int, ...] | None:
    """Differs if a file was written or replaced; None: there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


# -- the token of an agent or of hetctl --------------------------------------------------------------------


def find_client_token(token_file: Path | None) -> str | None:
    """The token in `--token-file`, else in `HET_TOKEN`; None if there is none."""
    if token_file is not None:
        return read_token(token_file)
    token = os.environ.get("HET_TOKEN", "").strip()
    if token and os.path.isfile(path := os.path.expanduser(token)):
        raise TokenFileError(
            f"HET_TOKEN is the name of a file, {path}, and must be a token: "
            f'give --token-file {path}, or HET_TOKEN="$(cat {path})"'
        )
    if token and not is_valid_token(token):
        raise TokenFileError("HET_TOKEN must hold one token, a single word of ASCII characters")
    return token or None


def reread_token(token_file: Path | None) -> str | None:
    """The token in a file that may have changed; None if there is no file, or no token in it."""
    try:
        return read_token(token_file) if token_file is not None else None
    except TokenFileError:
        return None


def read_token(path: Path) -> str:
    """The only token in a file."""
    token = read_secret("token file", path).strip()
    if not is_valid_token(token):
        what = "holds more than that" if token else "is empty"
        raise TokenFileError(
            f"token file {path} must hold one token, a single word of ASCII characters, but {what}: "
            f"write a token into it, for example with openssl rand -hex 32"
        )
    return token
