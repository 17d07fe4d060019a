"""Who may talk to a server: the token, where it is kept, and which host names are trusted without one."""

import ipaddress
import os
import re
import secrets
from pathlib import Path

from hetrdzv.errors import HetError


class AccessError(HetError):
    """A token file that cannot be used, or a bind that would be open to everybody."""

    code = "access"


def state_home() -> Path:
    """Where state is kept by default: `$XDG_STATE_HOME/hetrdzv`, else `~/.local/state/hetrdzv`.

    Raises:
        AccessError: nobody says where this user's files are.
    """
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():  # the XDG specification: such a value is to be ignored
        try:
            base = Path.home() / ".local" / "state"
        except RuntimeError:
            raise AccessError(
                "this user has no home directory: set XDG_STATE_HOME to where state is kept"
            ) from None
    return base / "hetrdzv"


def is_token(word: str) -> bool:
    """Whether an HTTP header can carry it: one word of visible ASCII characters."""
    return re.fullmatch(r"[!-~]+", word) is not None


def read_token(path: Path) -> str:
    """The token in a file.

    Raises:
        AccessError: the file cannot be read, holds no token, or more than one word.
    """
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise AccessError(f"token file {path} cannot be read: {reason}") from None
    if not is_token(token):
        what = "holds more than that" if token else "is empty"
        raise AccessError(
            f"token file {path} must hold one token, a single word of ASCII characters, but {what}: "
            f"write one into it, for example with openssl rand -hex 32"
        )
    return token


def client_token(token_file: Path | None) -> str | None:
    """The token that an agent or hetctl uses: of `--token-file`, else of `HET_TOKEN`, else none.

    Raises:
        AccessError: what is there cannot be a token.
    """
    if token_file is not None:
        return read_token(token_file)
    token = os.environ.get("HET_TOKEN", "").strip()
    if token and not is_token(token):
        raise AccessError("HET_TOKEN must hold one token, a single word of ASCII characters")
    return token or None


def token_again(token_file: Path | None) -> str | None:
    """The token in a file that may have changed; None: there is no file, or none that can be used."""
    try:
        return read_token(token_file) if token_file is not None else None
    except AccessError:
        return None


def is_private(path: Path) -> bool:
    """Whether a file can be read and written by nobody but its owner (and root)."""
    return path.stat().st_mode & 0o077 == 0


def is_private_if_there(path: Path) -> bool:
    """The same, but a file that is not there is nobody's."""
    return not path.exists() or is_private(path)


def make_token(path: Path) -> tuple[str, bool]:
    """Make a token and keep it in a file that only its owner can read; one that is there is used.

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
    return (token, True) if made else (_kept_token(path), False)


def _create(path: Path, content: str) -> bool:
    """Make a file that only its owner can read; False where there is one."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
    except OSError:  # a full disk: an empty file must not stay
        path.unlink(missing_ok=True)
        raise
    return True


def _kept_token(path: Path) -> str:
    token = read_token(path)
    _require_private(path)
    return token


def _require_private(path: Path) -> None:
    if not is_private(path):
        raise AccessError(
            f"token file {path} can be read by other users of this machine: remove it, so that a new token "
            f"is made (which every node needs then), or keep this one with chmod 600 {path}"
        )


def require_token_file(path: Path) -> bool:
    """Have a file with tokens that only its owner can read: the one that is there, or a new one.

    Returns:
        whether it was made now.

    Raises:
        AccessError: the file can be neither read nor written, or others can read it.
    """
    if path.exists():
        _require_private(path)
        return False
    return make_token(path)[1]


def is_loopback(address: str) -> bool:
    """Whether an address lets only this machine in."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def trusted_host(header: str) -> bool:
    """Whether a Host header can be trusted by a server without a token.

    A browser that was lured to a page under a name that now resolves to us (DNS rebinding) sends that name;
    programs on this machine send an address or localhost. No browser leaves the header out.
    """
    match = re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?", header.strip().lower())
    if match is None:
        return False
    host = match[1]
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        name = host.removesuffix(".")
        return name in ("", "localhost") or name.endswith(".localhost")
    return True
