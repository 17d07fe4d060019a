"""The config file of hetctl: clusters by name, each with its servers and what they ask for.

default = "lab"

[clusters.lab]
server = "http://gpu1:29400"
token_file = "~/.config/hetrdzv/lab.token"
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hetrdzv.auth.files import AccessError
from hetrdzv.auth.tokens import is_token
from hetrdzv.client import servers_from
from hetrdzv.words.phrasing import names

FILES = ("token_file", "ca_cert", "client_cert", "client_key")
"""Keys of a cluster that name files."""

KEYS = ("server", "token", *FILES)
"""All keys of a cluster."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A hetserver, or several that serve one state, and how to be let in.

    Attributes:
        token: to send; None: that of `token_file`, if there is one.
    """

    server: tuple[str, ...]
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    ca_cert: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """What a config file says.

    Attributes:
        default: the cluster that is meant where none is named, and no server; None: none.
    """

    path: Path
    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    default: str | None = None

    def cluster(self, name: str) -> Cluster:
        """A cluster by its name.

        Raises:
            AccessError: there is none of that name.
        """
        if name in self.clusters:
            return self.clusters[name]
        close = get_close_matches(name, self.clusters, 1)
        known = (
            f"it has {names(self.clusters)}" if self.clusters else f"add [clusters.{name}] with its server"
        )
        hint = f"did you mean '{close[0]}'?" if close else known
        raise AccessError(f"there is no cluster '{name}' in {self.path}: {hint}")


def config_path(environ: Mapping[str, str]) -> Path:
    """Where a person's config file is."""
    base = environ.get("XDG_CONFIG_HOME") or ""
    folder = Path(base) if base.startswith("/") else Path(environ.get("HOME") or "/") / ".config"
    return folder / "hetrdzv" / "config.toml"


def read(path: Path, home: str) -> Config:
    """Read a config file; one that is missing says nothing.

    Args:
        home: what `~` stands for.

    Raises:
        AccessError: it cannot be read, or does not make sense; names the key.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Config(path)
    except OSError as error:
        raise AccessError(f"config file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # of TOML, or of UTF-8: neither text shows what the file holds
        raise AccessError(f"config file {path} is not TOML: {error}") from None
    clusters = content.pop("clusters", {})
    default = content.pop("default", None)
    _refuse(path, content, ("default", "clusters"), "")
    if not isinstance(clusters, dict) or not all(isinstance(given, dict) for given in clusters.values()):
        raise AccessError(f"config file {path}: clusters must be tables, such as [clusters.lab]")
    config = Config(
        path, {name: _cluster(path, name, given, home) for name, given in clusters.items()}, default
    )
    if default is not None:
        config.cluster(_text(path, "default", default))
    return config


def _cluster(path: Path, name: str, given: Mapping[str, Any], home: str) -> Cluster:
    where = f"clusters.{name}"
    _refuse(path, given, KEYS, f" in [{where}]")
    server = given.get("server")
    if server is None:
        raise AccessError(
            f'config file {path}: [{where}] needs a server, such as server = "http://gpu1:29400"'
        )
    listed = server if isinstance(server, list) else [server]
    try:
        servers = servers_from(",".join(_text(path, f"{where}.server", url) for url in listed))
    except ValueError as error:
        raise AccessError(f"config file {path}: {where}.server: {error}") from None
    token = given.get("token")
    if token is not None and not (isinstance(token, str) and is_token(token)):
        raise AccessError(f"config file {path}: {where}.token must be one word of ASCII characters")
    files = {
        key: _file(_text(path, f"{where}.{key}", given[key]), path.parent, home)
        for key in FILES
        if key in given
    }
    return Cluster(tuple(servers), token, **files)


def _refuse(path: Path, given: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Refuse a key that means nothing."""
    for key in given:
        if key not in known:
            close = get_close_matches(key, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise AccessError(f"config file {path}: there is no key '{key}'{where}: {hint}")


def _text(path: Path, key: str, value: object) -> str:
    if not isinstance(value, str):
        raise AccessError(f"config file {path}: {key} must be a text in quotes")
    return value


def _file(name: str, folder: Path, home: str) -> Path:
    """A file that the config names: `~` is the person's home, anything relative lies beside the config."""
    return Path(home, name[2:]) if name.startswith("~/") else folder / name
