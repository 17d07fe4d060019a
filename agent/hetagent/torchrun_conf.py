"""What a torchrun job says of its rendezvous, checked: endpoint, run id and --rdzv-conf.

Changes when there is another option; docs/torchrun.md has them all.
"""

import os
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch.distributed.elastic.rendezvous import RendezvousParameters

from hetagent import ids
from hetagent.flags import SPEC_FLAGS
from hetagent.network import parse_port_range
from hetrdzv.access import client_token
from hetrdzv.client import servers_from
from hetrdzv.tls import ClientTls
from hetrdzv.wire import JoinRequest, SpecFields

CONNECT_TIMEOUT_S = 60.0

ENDLESS_RESTARTS = int(SpecFields.model_json_schema()["properties"]["max_restarts"]["maximum"])
"""torch's agents count the restarts (--max-restarts): unless asked to, the server ends no job of theirs."""

TORCHS_STOP_TIMEOUT_S = 30.0
"""How long torch's agent gives workers to stop before a restart (seconds), whatever --shutdown-timeout says."""

TORCHS_OWN = frozenset({"timeout"})
"""Options that torch adds to every job's, for its own backends."""


class ConfError(ValueError):
    """A job that cannot be; the text says what to change."""


def _path(text: str) -> Path:
    return Path(text).absolute()


def _whole(text: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "node_id": ids.checked,
    "slots": _whole,
    "local_addr": str,
    "interface": str,
    "port_range": parse_port_range,
    "connect_timeout_s": SPEC_FLAGS["lease_s"][0],
    "token_file": _path,
    "ca_cert": _path,
    "client_cert": _path,
    "client_key": _path,
    "max_restarts": _whole,
    **{name: kind for name, (kind, _) in SPEC_FLAGS.items()},
}
"""Every option of --rdzv-conf, with what makes a value of its text."""


TORCHRUNS_FLAGS = frozenset({"local_addr", "max_restarts"})
"""Options that torchrun has a flag of the same name for."""

_HETAGENTS_FLAG = re.compile(
    rf"(?<!hetserver with )--({'|'.join(OPTIONS.keys() - TORCHRUNS_FLAGS).replace('_', '-')})\b(?!-)(?: (/\S+))?"
)


def as_rdzv_conf(text: str) -> str:
    """A text that advises hetagent's flags, with torchrun's ways to say the same."""

    def option(flag: re.Match[str]) -> str:
        return f"--rdzv-conf {flag[1].replace('-', '_')}={flag[2] or '...'}"

    text = re.sub(r"--server\b(?!-)", "--rdzv-endpoint", text)
    return _HETAGENTS_FLAG.sub(option, text).replace("start hetagent", "start torchrun")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """One node's part in one job. `slots` is only for what the server shows; torch assigns the ranks."""

    servers: tuple[str, ...]
    group: str
    node_id: str
    slots: int
    local_addr: str | None
    interface: str | None
    port_range: tuple[int, int] | None
    connect_timeout_s: float
    token_file: Path | None
    tls: ClientTls
    spec: SpecFields


def conf_of(params: RendezvousParameters) -> Conf:
    """What torchrun's --rdzv-endpoint, --rdzv-id, --nnodes, --local-addr and --rdzv-conf come to.

    Raises:
        ConfError: they make no sense.
        TlsError: a certificate or key cannot be used.
    """
    options = _options(params.config)
    try:
        group = ids.checked(params.run_id)
    except ValueError as error:
        raise ConfError(f"--rdzv-id {error}: it is the group's id on the server") from None
    local_addr = options.get("local_addr", params.local_addr)
    if params.local_addr not in (None, local_addr):
        raise ConfError("--local-addr and --rdzv-conf local_addr say different things: give one of them")
    if local_addr is not None and "interface" in options:
        raise ConfError("local_addr and interface say the same: give one of them")
    spec = {"max_restarts": ENDLESS_RESTARTS, "min_nodes": params.min_nodes, "max_nodes": params.max_nodes}
    spec |= {name: options[name] for name in ("max_restarts", *SPEC_FLAGS) if name in options}
    slots = options.get("slots", 1)
    return Conf(
        servers=_servers(params.endpoint),
        group=group,
        node_id=options.get("node_id") or _host_name(),
        slots=slots,
        local_addr=local_addr,
        interface=options.get("interface"),
        port_range=options.get("port_range"),
        connect_timeout_s=options.get("connect_timeout_s", CONNECT_TIMEOUT_S),
        token_file=options.get("token_file"),
        tls=ClientTls.of(
            {name: options.get(name) for name in ("ca_cert", "client_cert", "client_key")}, os.environ
        ),
        spec=_spec(spec, slots, local_addr),
    )


def _options(config: Mapping[str, object]) -> dict[str, Any]:
    """The options that were given, each as what it means.

    Raises:
        ConfError: one is unknown, or has no such value. A value of an unknown one is not repeated.
    """
    known = f"known are {', '.join(sorted(OPTIONS))}"
    unknown = sorted(config.keys() - OPTIONS.keys() - TORCHS_OWN)
    if unknown:
        raise ConfError(f"--rdzv-conf has no option {', '.join(map(repr, unknown))} with hetrdzv; {known}")
    found = {}
    for name, value in config.items():
        if name in OPTIONS and value is not None:
            try:
                found[name] = OPTIONS[name](str(value))
            except (ValueError, ArgumentTypeError) as error:
                raise ConfError(f"--rdzv-conf {name}={value}: {error}") from None
    return found


def _servers(endpoint: str) -> tuple[str, ...]:
    if not endpoint.strip():
        raise ConfError("no server: give --rdzv-endpoint host:29400, where hetserver listens")
    try:
        return tuple(servers_from(endpoint))
    except ValueError as error:
        raise ConfError(f"--rdzv-endpoint: {error}") from None


def _host_name() -> str:
    try:
        return ids.host_name()
    except ValueError as error:
        raise ConfError(f"{error}: give --rdzv-conf node_id=NAME") from None


def _spec(fields: Mapping[str, Any], slots: int, local_addr: str | None) -> SpecFields:
    """The group's spec; checks with it what else a join would be refused for."""
    try:
        spec = SpecFields(**fields)
        JoinRequest(incarnation="any", slots=slots, address=local_addr or "any", port=1, spec=spec)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfError(f"--rdzv-conf {first['loc'][-1]}={first['input']}: {first['msg']}") from None
    return spec


_taken_token: list[str] = []
"""Of the environment; a program that launches twice finds it there only once."""


def take_token(token_file: Path | None) -> str | None:
    """The token for the server, of a file or else of HET_TOKEN, which the workers do not need.

    Raises:
        AccessError: the file, or HET_TOKEN, cannot be used.
    """
    try:
        given = client_token(None)
    finally:
        os.environ.pop("HET_TOKEN", None)
    if given is not None:
        _taken_token[:] = [given]
    if token_file is not None:
        return client_token(token_file)
    return _taken_token[0] if _taken_token else None
