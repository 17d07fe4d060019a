"""The handler between torch's agent and the server: how it acts on directives, and what it cleans up."""

import gc
import socket
import subprocess
import sys
import time
from typing import Any

import pytest
from tests.agent.torchrun.driver import ScriptedLine, connect, directive, params, port_holder
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousParameters
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry
from torch.distributed.run import main

from hetagent.torchrun.conf import parse_conf
from hetagent.torchrun.handler import TorchrunHandler


def test_torch_has_it_in_its_registry() -> None:
    made = registry.create_handler(params())
    assert isinstance(made, TorchrunHandler)
    assert (made.get_backend(), made.get_run_id(), made.num_nodes_waiting()) == ("hetrdzv", "job", 0)
    assert made.use_agent_store
    assert not made.is_closed()
    made.set_closed()
    assert made.is_closed()
    with pytest.raises(RendezvousClosedError, match="this handler has closed"):
        made.next_rendezvous()
    assert made.shutdown()
    with pytest.raises(RendezvousClosedError, match="create another handler"):
        made.next_rendezvous()


@pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning"
)  # of workers of tests before, collected here
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_two_on_one_host_need_no_names() -> None:
    """As with torchrun's own backends; after a restart each has its name again."""

    def make() -> TorchrunHandler:
        made = registry.create_handler(RendezvousParameters("hetrdzv", "h:1", "two-on-one-host", 1, 3))
        assert isinstance(made, TorchrunHandler)
        return made

    host = socket.gethostname()
    first, second = make(), make()
    assert (first._node_id, second._node_id) == (host, f"{host}.2")
    second.shutdown()
    third = make()
    assert third._node_id == f"{host}.2"
    del first
    gc.collect()
    assert make()._node_id == host, "after a signal torch calls no shutdown()"
    third.shutdown()


def test_other_backends_pay_nothing_for_it() -> None:
    """Every torchrun on the machine loads the entry point."""
    code = "import sys; before = set(sys.modules); import hetagent.torchrun; print(*sorted(set(sys.modules) - before))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    ours = {name for name in said.split() if name.startswith("het")}
    assert ours == {"hetagent", "hetagent.torchrun"}
    assert "torch" not in said.split()


def test_all_agents_stop_their_workers_at_once() -> None:
    """Whichever asks first waits until the others have had time to ask, too."""
    handler, line = TorchrunHandler(parse_conf(params())), ScriptedLine()
    connection = connect(handler, line)
    connection.round, connection.in_round, connection.interval_s = 2, True, 0.3
    assert handler.num_nodes_waiting() == 0
    line.handed_at = time.monotonic()
    line.news = [directive("stop", 2)]
    assert handler.num_nodes_waiting() == 1
    assert time.monotonic() >= line.handed_at + 0.3
    line.end()
    handler._connection = None


@pytest.mark.parametrize(
    "fields", [{"exit_code": 0, "outcome": "succeeded"}, {"exit_code": 4, "code": "drained"}]
)
def test_torchrun_exits_as_hetagent_would(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's launch_agent() cannot handle a graceful exit."""
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "")  # torchrun sets it; restored afterwards
    words = ["--rdzv-backend", "hetrdzv", "--rdzv-endpoint", "h", "--rdzv-id", "job", "train.py"]
    with port_holder(directive("exit", **fields)) as (handler, _):
        monkeypatch.setattr("hetagent.torchrun.handler.TorchrunHandler", lambda conf: handler)
        with pytest.raises(SystemExit) as end:
            main.__wrapped__(words)  # type: ignore[attr-defined]
        assert end.value.code == fields["exit_code"]
        assert handler.is_closed()
