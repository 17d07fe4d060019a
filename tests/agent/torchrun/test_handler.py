"""The handler between torch's agent and the server: how it acts on directives, and what it cleans up."""

import gc
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.agent.torchrun.driver import ScriptedLine, connect, directive, offered_port, params, port_holder
from tests.agent.workers.test_store import start
from torch.distributed.elastic.agent.server.api import RunResult, SimpleElasticAgent, WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousParameters
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry
from torch.distributed.run import main

from hetagent.torchrun.conf import parse_conf
from hetagent.torchrun.handler import TorchrunHandler
from hetagent.torchrun.messages import find_first_failure
from hetrdzv.protocol.directive import Directive

# -- how torch finds it --------------------------------------------------------------------------------------


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


# -- what the server says ------------------------------------------------------------------------------------


@pytest.mark.parametrize("master", ["a", "b"])
def test_ranks_are_the_servers_whatever_becomes_of_the_others(master: str) -> None:
    gc.disable()  # a store that lives until garbage collection would hold the only port of a port_range
    try:
        with port_holder() as (handler, line, port):
            assert offered_port(handler) == port
            assert handler._connection is not None
            info = handler._enter(handler._connection, start(master, port, group_rank=0))
            spec = WorkerSpec(role="default", local_world_size=2, rdzv_handler=handler, entrypoint="train.py")
            agent: Any = None
            workers: list[Any] = SimpleElasticAgent._assign_worker_ranks(
                agent, info.store, info.rank, info.world_size, spec
            )
            assert [(each.global_rank, each.world_size) for each in workers] == [(2, 4), (3, 4)]
            assert [(each.role_rank, each.role_world_size) for each in workers] == [(2, 4), (3, 4)]
            assert [said[0] for said in line.said] == ["started"]
            line.hear(directive("stop", 1))
            assert handler.num_nodes_waiting() == 1
            handler.release()
            assert offered_port(handler) == port
    finally:
        gc.enable()


@pytest.fixture
def in_round_2() -> Iterator[tuple[TorchrunHandler, ScriptedLine]]:
    handler, line = TorchrunHandler(parse_conf(params())), ScriptedLine()
    connection = connect(handler, line)
    connection.round, connection.in_round = 2, True
    yield handler, line
    handler._connection = None


@pytest.mark.parametrize(
    ("news", "waiting"),
    [
        ([], 0),
        ([directive("wait", 0)], 0),
        ([directive("stop", 1)], 0),
        ([directive("stop", 2)], 1),
        ([directive("exit", 0, exit_code=3)], 1),
    ],
)
def test_nodes_wait_exactly_when_the_round_is_over(
    in_round_2: tuple[TorchrunHandler, ScriptedLine], news: list[Directive], waiting: int
) -> None:
    handler, line = in_round_2
    assert handler.num_nodes_waiting() == 0
    line.news = news
    assert handler.num_nodes_waiting() == waiting
    assert handler.num_nodes_waiting() == waiting
    assert line.said == []


def test_all_agents_stop_their_workers_at_once(in_round_2: tuple[TorchrunHandler, ScriptedLine]) -> None:
    """Whichever asks first waits until the others have had time to ask, too."""
    handler, line = in_round_2
    handler._asked_at = time.monotonic() - 0.3  # torch's monitor_interval, as it was seen
    assert handler.num_nodes_waiting() == 0
    line.handed_at = time.monotonic()
    line.news = [directive("stop", 2)]
    assert handler.num_nodes_waiting() == 1
    assert time.monotonic() >= line.handed_at + 0.3


def test_a_failure_is_reported_until_the_round_is_over_and_a_final_one_until_the_job_is(
    in_round_2: tuple[TorchrunHandler, ScriptedLine],
) -> None:
    handler, line = in_round_2
    connection = handler._connection
    assert connection is not None
    for news in ([], [directive("stop", 2)], [directive("exit", 2)]):
        line.news = news
        connection.take_directives()
        for final in (False, True):
            handler._report_failure(connection, final=final)
    told = [(what, number, failure.final) for what, number, failure in line.said]
    assert told == [("failed", 2, False), ("failed", 2, True), ("failed", 2, True)]


@pytest.mark.parametrize(
    "fields", [{"exit_code": 0, "outcome": "succeeded"}, {"exit_code": 4, "code": "drained"}]
)
def test_torchrun_exits_as_hetagent_would(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's launch_agent() cannot handle a graceful exit."""
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "")  # torchrun sets it; restored afterwards
    words = ["--rdzv-backend", "hetrdzv", "--rdzv-endpoint", "h", "--rdzv-id", "job", "train.py"]
    with port_holder(directive("exit", **fields)) as (handler, _, _):
        monkeypatch.setattr("hetagent.torchrun.handler.TorchrunHandler", lambda conf: handler)
        with pytest.raises(SystemExit) as end:
            main.__wrapped__(words)  # type: ignore[attr-defined]
        assert end.value.code == fields["exit_code"]
        assert handler.is_closed()


def test_the_failure_is_read_from_torchs_agent() -> None:
    def agent(failed: dict[int, ProcessFailure]) -> Any:
        result = RunResult(WorkerState.FAILED, failures=failed)
        return find_first_failure(), result

    killed, _ = agent({7: ProcessFailure(local_rank=1, pid=1, exitcode=-9, error_file="<N/A>")})
    assert (killed.rank, killed.local_rank, killed.signal, killed.exit_code) == (7, 1, "SIGKILL", None)
    failed, _ = agent({3: ProcessFailure(local_rank=0, pid=1, exitcode=5, error_file="<N/A>")})
    assert (failed.rank, failed.exit_code, failed.signal, failed.message) == (3, 5, None, "")
    unknown, _ = agent({})
    assert (unknown.rank, unknown.local_rank) == (-1, -1)
