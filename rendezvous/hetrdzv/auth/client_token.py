"""The one token that an agent or hetctl uses: from `--token-file`, or from `HET_TOKEN`."""

import os
from collections.abc import Callable
from pathlib import Path

from hetrdzv.auth.files import AccessError, read_secret
from hetrdzv.auth.tokens import is_token


def client_token(token_file: Path | None, warn: Callable[[str], None] = lambda text: None) -> str | None:
    """The token in `--token-file`, else in `HET_TOKEN`; None if there is none. Warns if others can read that file."""
    if token_file is not None:
        return read_token(token_file, warn)
    token = os.environ.get("HET_TOKEN", "").strip()
    if token and os.path.isfile(path := os.path.expanduser(token)):
        raise AccessError(
            f"HET_TOKEN is the name of a file, {path}, and must be a token: "
            f'give --token-file {path}, or HET_TOKEN="$(cat {path})"'
        )
    if token and not is_token(token):
        raise AccessError("HET_TOKEN must hold one token, a single word of ASCII characters")
    return token or None


def reread_token(token_file: Path | None) -> str | None:
    """The token in a file that may have changed; None if there is no file, or no token in it."""
    try:
        return read_token(token_file) if token_file is not None else None
    except AccessError:
        return None


def read_token(path: Path, warn: Callable[[str], None] = lambda text: None) -> str:
    """The only token in a file."""
    token = read_secret("token file", path, warn).strip()
    if not is_token(token):
        what = "holds more than that" if token else "is empty"
        raise AccessError(
            f"token file {path} must hold one token, a single word of ASCII characters, but {what}: "
            f"write a token into it, for example with openssl rand -hex 32"
        )
    return token
