"""The settings of hetserver: each with its flag, default and help, in one place."""

# ruff: noqa: RUF009 - `flag` makes dataclass fields

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from hetrdzv.protocol.texts.addresses import DEFAULT_PORT

_F = TypeVar("_F", bound=Callable[..., Any])

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # generic since click 8.4 only


class Duration(ParamType):
    """A duration such as `90s`, `15m`, `12h` or `7d`, or `0`, converted to seconds; no unit is guessed.

    Args:
        least, most: bounds (seconds).
    """

    name = "duration"

    def __init__(self, least: float, most: float) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip()
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", text)
        if match is not None and not match[2] and float(match[1]):
            written = [f"{text}{unit}" for unit in _UNITS]
            self.fail(f"{value!r} has no unit: write {', '.join(written[:-1])} or {written[-1]}", param, ctx)
        seconds = float(match[1]) * _UNITS[match[2] or "s"] if match is not None else math.nan
        if not self._least <= seconds <= self._most:
            least, most = shown_duration(self._least), shown_duration(self._most)
            self.fail(
                f"{value!r} is not a duration from {least} to {most}, such as 90s, 15m, 12h or 7d",
                param,
                ctx,
            )
        return seconds


def shown_duration(seconds: float) -> str:
    """A duration in the form that its flag takes."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:g}{unit}"
    return f"{seconds:g}s"


def flag(default: Any, help: str, **more: Any) -> Any:  # noqa: A002 - click's own word
    """A setting with its flag, which has the same name unless `flag` gives another."""
    return field(default=default, metadata={"help": help, **more})


FILE = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits that bound a server's memory, whatever clients ask for; those without a flag are constants.

    Attributes:
        max_groups: including finished ones.
        max_nodes_per_group: live ones.
    """

    max_groups: int = 10_000
    max_nodes_per_group: int = 16_384
    keep_finished_s: float = flag(
        7 * 86_400.0,
        "How long to keep a finished group: 90s, 15m, 12h, 7d.",
        flag="keep-finished",
        type=Duration(0, 3_650 * 86_400),
    )
    keep_idle_s: float = flag(
        86_400.0,
        "How long to keep an unfinished group after its last agent has gone (not if it was made with PUT).",
        flag="keep-idle",
        type=Duration(60, 3_650 * 86_400),
    )


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The command line of hetserver; `limits` is a part of it."""

    host: str = flag("127.0.0.1", "Address to listen on.")
    port: int = flag(DEFAULT_PORT, "Port to listen on; 0: any free one.", type=click.IntRange(0, 65_535))
    store: str | None = flag(
        None,
        "Where to keep state: sqlite:PATH or memory; see --advertise for several servers.  "
        "[default: sqlite:$XDG_STATE_HOME/hetrdzv/state.db]",
    )
    token_file: Path | None = flag(
        None,
        "File with tokens; every request must carry one: either one bare token, or lines "
        "TOKEN admin|agent|read [group=PATTERN].  [default beyond loopback: made at the first start]",
        type=FILE,
    )
    insecure: bool = flag(
        False,
        "Serve other machines without a token: anyone who reaches the server can run commands.",
        is_flag=True,
    )
    tls_cert: Path | None = flag(
        None, "Serve TLS with this certificate, followed by any intermediate certificates (PEM).", type=FILE
    )
    tls_key: Path | None = flag(None, "Key of --tls-cert (PEM).", type=FILE)
    tls_client_ca: Path | None = flag(
        None, "Require clients to have a certificate signed by this CA (PEM).", type=FILE
    )
    fd: int | None = flag(
        None, "Serve on this inherited listening socket instead of --host and --port.", type=int
    )
    stop_at_eof: bool = flag(False, "Stop when standard input ends (for parent programs).", is_flag=True)
    log_level: str = flag("info", "Log level.", type=click.Choice(["debug", "info", "warning", "error"]))
    log_format: str = flag(
        "text",
        "One line per record either way.",
        type=click.Choice(["text", "json"]),
        envvar="HET_LOG_FORMAT",
        show_envvar=True,
    )
    limits: Limits = DEFAULT_LIMITS

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From the values that click has parsed."""
        limits = {name: values[name] for name in values if name in Limits.__dataclass_fields__}
        own = {name: values[name] for name in values if name in cls.__dataclass_fields__}
        return cls(limits=Limits(**limits), **own)


def flags(*sections: type) -> Callable[[_F], _F]:
    """Give a click command a flag for each setting; it is called with the values by name.

    Args:
        sections: dataclasses of further settings.
    """
    settings = (*dataclasses.fields(Settings)[:-1], *dataclasses.fields(Limits))
    settings += tuple(setting for section in sections for setting in dataclasses.fields(section))
    settings = tuple(setting for setting in settings if "help" in setting.metadata)

    def give(command: _F) -> _F:
        for setting in reversed(settings):
            more = dict(setting.metadata)
            name = more.pop("flag", setting.name.replace("_", "-"))
            default = setting.default
            if isinstance(more.get("type"), Duration):
                default = shown_duration(default)
            shown = default is not None and "is_flag" not in more
            option = click.option(f"--{name}", setting.name, default=default, show_default=shown, **more)
            command = option(command)
        return command

    return give
