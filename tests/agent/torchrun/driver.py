"""A handler with a scripted server."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.agent.workers.test_store import start
from torch.distributed.elastic.rendezvous import RendezvousParameters

from hetagent.node.network import AdvertisedAddress, hold_port
from hetagent.torchrun.conf import parse_conf
from hetagent.torchrun.connection import TorchrunConnection
from hetagent.torchrun.handler import TorchrunHandler
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.states import DirectiveKind

FOR = Reason(code="?", message="for a reason")


def params(
    endpoint: str = "host:29400", run_id: str = "job", local_addr: str | None = None, **conf: Any
) -> Any:
    return RendezvousParameters("hetrdzv", endpoint, run_id, 1, 3, local_addr, **conf)


def directive(kind: str, round_number: int = 1, **fields: Any) -> Directive:
    """Any directive except a start."""
    return replace(
        start("a", 1),
        **{"kind": DirectiveKind(kind), "round": round_number, "start": None, "reason": FOR} | fields,
    )


class ScriptedLine:
    """A line whose directives come from the test; whatever else it is asked to do it does not."""

    handed_at = 0.0

    def __init__(self, *news: Directive) -> None:
        self.news = [*news]
        self.session = SimpleNamespace(is_server_away=True)
        self._read_fd, self._write_fd = os.pipe()
        os.write(self._write_fd, b"!")

    def fileno(self) -> int:
        return self._read_fd

    def take_directives(self) -> list[Directive]:
        taken, self.news = self.news, []
        return taken

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *words: None

    def end(self) -> None:
        os.close(self._read_fd)
        os.close(self._write_fd)


def connect(handler: TorchrunHandler, line: ScriptedLine) -> TorchrunConnection:
    place = AdvertisedAddress("127.0.0.1", None, is_chosen=True)
    handler._connection = TorchrunConnection(place, line, handler._log)  # type: ignore[arg-type]
    return handler._connection


def offered_port(handler: TorchrunHandler) -> int:
    """The port that a connected handler offers."""
    assert handler._connection is not None
    return handler._hold_offered_port(handler._connection)


@contextlib.contextmanager
def port_holder(*news: Directive) -> Iterator[tuple[TorchrunHandler, int]]:
    """Node a, which may offer one port only; the port."""
    with hold_port("127.0.0.1", None) as free:
        port: int = free.getsockname()[1]
    conf = parse_conf(params(node_id="a", local_addr="127.0.0.1", port_range=f"{port}-{port}"))
    handler, line = TorchrunHandler(conf), ScriptedLine(*news)
    connect(handler, line)
    try:
        yield handler, port
    finally:
        handler._connection = None
        handler.shutdown()
        line.end()
