"""Reads and checks what torchrun was told about the rendezvous: endpoint, run id and --rdzv-conf (docs/launch.md)."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousParameters

from hetagent.cli.flags import SPEC_FLAGS
from hetagent.errors import UsageError
from hetagent.node.names import host_name
from hetagent.node.network import parse_port_range
from hetagent.node.processes.identity import ServerAccess
from hetagent.options.values import parse_absolute
from hetagent.session.backoff import CONNECT_TIMEOUT_S
from hetrdzv.auth.files import find_client_token
from hetrdzv.auth.tls import ClientTls
from hetrdzv.client import parse_server_urls
from hetrdzv.protocol.requests import SpecFields
from hetrdzv.protocol.settings import SETTINGS, UNLIMITED_RESTARTS
from hetrdzv.protocol.texts.ids import check_id
from hetrdzv.protocol.texts.parsing import parse_seconds

TORCHS_OWN = frozenset({"timeout"})
"""Options that torch adds to every job for its own backends; ignored."""


WORLD_SIZES = ("min_world_size", "max_world_size")
"""What hetagent's --world-size gives."""

OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "node_id": check_id,
    "local_addr": str,
    "interface": str,
    "port_range": parse_port_range,
    "connect_timeout_s": parse_seconds,
    "token_file": parse_absolute,
    "ca_cert": parse_absolute,
    "client_cert": parse_absolute,
    "client_key": parse_absolute,
    **{name: SETTINGS[name].read for name in WORLD_SIZES},
    "max_restarts": SETTINGS["max_restarts"].read,
    **{name: spec.read for name, spec in SPEC_FLAGS.items()},
}
"""Every option of --rdzv-conf, with the function that parses its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConf:
    """One node's settings for one job.

    Attributes:
        node_id, node_id_given: if it was not given, it is the host name, to which a second agent of the group on
            this host adds a number (node/names.py).
    """

    access: ServerAccess
    group: str
    node_id: str
    node_id_given: bool
    local_addr: str | None
    interface: str | None
    port_range: tuple[int, int] | None
    connect_timeout_s: float
    spec: SpecFields


def parse_conf(params: RendezvousParameters) -> JobConf:
    """The settings that torchrun's --rdzv-endpoint, --rdzv-id, --nnodes, --local-addr and --rdzv-conf amount to."""
    options = _parse_options(params.config)
    try:
        group = check_id(params.run_id)
    except ValueError as error:
        raise UsageError(f"--rdzv-id {error}: it is the group's id on the server") from None
    try:
        servers = parse_server_urls(params.endpoint)
    except ValueError as error:
        raise UsageError(f"--rdzv-endpoint: {error}") from None
    local_addr = options.get("local_addr", params.local_addr)
    if params.local_addr not in (None, local_addr):
        raise UsageError("--local-addr and --rdzv-conf local_addr contradict each other: give one of them")
    if local_addr is not None and "interface" in options:
        raise UsageError("local_addr and interface both choose the address: give one of them")
    # torch's agents count restarts (--max-restarts): the server sets no limit of its own unless asked to
    spec = {"max_restarts": UNLIMITED_RESTARTS, "min_nodes": params.min_nodes, "max_nodes": params.max_nodes}
    spec |= {name: options[name] for name in ("max_restarts", *WORLD_SIZES, *SPEC_FLAGS) if name in options}
    token_file = options.get("token_file")
    access = ServerAccess(
        servers=tuple(servers),
        token=_take_token(token_file),
        token_file=token_file,
        tls=ClientTls.from_flags(options, os.environ),
    )
    return JobConf(
        access=access,
        group=group,
        node_id=options.get("node_id") or host_name("--rdzv-conf node_id=NAME"),
        node_id_given="node_id" in options,
        local_addr=local_addr,
        interface=options.get("interface"),
        port_range=options.get("port_range"),
        connect_timeout_s=options.get("connect_timeout_s", CONNECT_TIMEOUT_S),
        spec=SpecFields(**spec),
    )


def _parse_options(config: Mapping[str, object]) -> dict[str, Any]:
    """The options that were given, parsed."""
    known = f"known are {', '.join(sorted(OPTIONS))}"
    unknown = sorted(config.keys() - OPTIONS.keys() - TORCHS_OWN)
    if unknown:
        raise UsageError(f"--rdzv-conf has no option {', '.join(map(repr, unknown))} with hetrdzv; {known}")
    parsed = {}
    for name, value in config.items():
        if name in OPTIONS and value is not None:
            try:
                parsed[name] = OPTIONS[name](str(value))
            except ValueError as error:
                raise UsageError(f"--rdzv-conf {name}={value}: {error}") from None
    return parsed


_taken_token: list[str] = []
"""HET_TOKEN's former value, for a program that launches twice: the variable is there only the first time."""


def _take_token(token_file: Path | None) -> str | None:
    """The token for the server, from a file or else from HET_TOKEN, which is removed since workers do not need it."""
    try:
        given = find_client_token(None)
    finally:
        os.environ.pop("HET_TOKEN", None)
    if given is not None:
        _taken_token[:] = [given]
    if token_file is not None:
        return find_client_token(token_file)
    return _taken_token[0] if _taken_token else None
