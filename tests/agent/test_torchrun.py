"""The torchrun plug-in's parts: found by torch, options understood, the server's word in torch's terms."""

import contextlib
import gc
import inspect
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.agent.test_handler import client, start
from tests.agent.test_line import Talk, soon
from tests.test_docs import differences, page, quoted, rows, section
from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import RunResult, SimpleElasticAgent, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousParameters,
)
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, get_args_parser, main, parse_args

from hetagent import torchrun_conf, torchrun_handler
from hetagent.flags import SPEC_FLAGS
from hetagent.network import hold_port
from hetagent.place import Place
from hetagent.torchrun import create_handler
from hetagent.torchrun_callers import failure_of_callers
from hetagent.torchrun_conf import ENDLESS_RESTARTS, OPTIONS, ConfError, as_rdzv_conf, conf_of, take_token
from hetagent.torchrun_handler import (
    LONGEST_INTERVAL_S,
    TorchrunHandler,
    _abandon,
    _exit_error,
    _Inherited,
    _tell,
)
from hetrdzv.access import AccessError
from hetrdzv.core.model import GroupSpec
from hetrdzv.tls import TlsError
from hetrdzv.wire import DirectiveReply


def params(
    endpoint: str = "host:29400", run_id: str = "job", local_addr: str | None = None, **conf: Any
) -> Any:
    return RendezvousParameters("hetrdzv", endpoint, run_id, 1, 3, local_addr, **conf)


def directive(kind: str, round_number: int = 1, **fields: Any) -> DirectiveReply:
    return start("a", 1).model_copy(
        update={"kind": kind, "round": round_number, "start": None, "why": "for a reason"} | fields
    )


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HET_TOKEN", raising=False)
    monkeypatch.setattr(torchrun_conf, "_taken_token", [])


# -- how torch finds it --------------------------------------------------------------------------------------


def test_torch_has_it_in_its_registry() -> None:
    made = registry.create_handler(params())
    assert isinstance(made, TorchrunHandler)
    assert (made.get_backend(), made.get_run_id(), made.num_nodes_waiting()) == ("hetrdzv", "job", 0)
    assert made.use_agent_store
    made.set_closed()
    assert not made.is_closed()
    assert made.shutdown()
    assert made.is_closed()
    with pytest.raises(RendezvousClosedError, match="make another handler"):
        made.next_rendezvous()


def test_who_uses_another_backend_pays_nothing_for_it() -> None:
    """Every torchrun of the machine loads the entry point."""
    code = "import sys; before = set(sys.modules); import hetagent.torchrun; print(*sorted(set(sys.modules) - before))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    ours = {name for name in said.split() if name.startswith("het")}
    assert ours == {"hetagent", "hetagent.torchrun"}
    assert "torch" not in said.split()


# -- what it is told -----------------------------------------------------------------------------------------


def test_what_torchrun_passes_is_understood() -> None:
    """Real command line, torchrun's own parser: whatever it adds to the options has to be accepted."""
    words = [
        "--nnodes",
        "2:4",
        "--rdzv-backend",
        "hetrdzv",
        "--rdzv-endpoint",
        "http://h1:1,h2",
        "--rdzv-id",
        "G",
    ]
    words += [
        "--rdzv-conf",
        "slots=4,node_id=gpu1,lease_s=7.5,on_join=spare,port_range=29500-29510",
        "train.py",
    ]
    config, _, _ = config_from_args(parse_args(words))
    conf = conf_of(
        RendezvousParameters(
            config.rdzv_backend,
            config.rdzv_endpoint,
            config.run_id,
            config.min_nodes,
            config.max_nodes,
            config.local_addr,
            **config.rdzv_configs,
        )
    )
    assert conf.servers == ("http://h1:1", "http://h2:29400")
    assert (conf.group, conf.node_id, conf.slots, conf.port_range) == ("G", "gpu1", 4, (29500, 29510))
    assert conf.spec.given() == {
        "min_nodes": 2,
        "max_nodes": 4,
        "max_restarts": ENDLESS_RESTARTS,
        "lease_s": 7.5,
        "on_join": "spare",
    }


def test_what_torch_adds_is_all_that_is_passed_over() -> None:
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1)
    assert set(config.rdzv_configs) == torchrun_conf.TORCHS_OWN


def test_a_program_may_pass_numbers() -> None:
    conf = conf_of(params(slots=3, max_restarts=2, last_call_s=1.5, connect_timeout_s=9, node_id=None))
    assert (conf.slots, conf.spec.max_restarts, conf.spec.last_call_s, conf.connect_timeout_s) == (
        3,
        2,
        1.5,
        9.0,
    )
    assert conf.node_id == os.uname().nodename


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"endpoint": " "}, "no server: give --rdzv-endpoint"),
        ({"endpoint": "ftp://host"}, "--rdzv-endpoint: 'ftp://host' as a server: the scheme is 'ftp'"),
        ({"run_id": "my job"}, "--rdzv-id 'my job' must be 1 to 128 letters"),
        ({"token": "secret"}, "no option 'token' with hetrdzv; known are ca_cert, .*, token_file"),
        ({"join_timeout": "3"}, "no option 'join_timeout'"),
        ({"slots": "two"}, "slots=two: 'two' is not a whole number"),
        ({"slots": "0"}, "slots=0: .* greater than or equal to 1"),
        ({"node_id": "a b"}, "node_id=a b: 'a b' must be"),
        ({"lease_s": "-1"}, "lease_s=-1: -1 is not a number of seconds"),
        ({"on_join": "wait"}, "on_join=wait: "),
        ({"port_range": "9-1"}, "port_range=9-1: .* ends before it begins"),
        ({"local_addr": "10.0.0.1", "interface": "eth0"}, "local_addr and interface say the same"),
    ],
)
def test_what_makes_no_sense_is_refused(how: dict[str, str], told: str) -> None:
    with pytest.raises(ConfError, match=told) as refusal:
        create_handler(params(**how))
    assert "secret" not in str(refusal.value)


def test_the_address_may_come_from_torchrun() -> None:
    assert conf_of(params(local_addr="10.0.0.1")).local_addr == "10.0.0.1"
    assert conf_of(RendezvousParameters("hetrdzv", "h", "job", 1, 1, "10.0.0.1")).local_addr == "10.0.0.1"
    both = RendezvousParameters("hetrdzv", "h", "job", 1, 1, "10.0.0.1")
    both.config["local_addr"] = "10.0.0.2"
    with pytest.raises(ConfError, match="say different things"):
        conf_of(both)


def test_every_field_of_a_spec_has_an_option() -> None:
    told_otherwise = {"min_nodes", "max_nodes", "command"}  # --nnodes; the script
    assert torchrun_conf.SpecFields.model_fields.keys() - told_otherwise <= OPTIONS.keys()


def options_told() -> dict[str, str]:
    """The options in docs/torchrun.md, each with its default."""
    table = rows(section(page("docs/torchrun.md"), "Options"))
    return {name: row[1] for row in table for name in quoted(row[:1])}


def test_every_option_is_told() -> None:
    assert differences("option", "docs/torchrun.md", set(options_told()), set(OPTIONS)) == []
    assert differences("option", "docs/torchrun.md", set(), {"slots"}) != []


def test_defaults_are_told() -> None:
    there = {name: f"{getattr(GroupSpec(), name):g}" for name in SPEC_FLAGS if name != "on_join"}
    there |= {"max_restarts": str(ENDLESS_RESTARTS), "on_join": str(GroupSpec().on_join), "slots": "1"}
    there |= {"connect_timeout_s": f"{conf_of(params()).connect_timeout_s:g}"}
    told = options_told()
    assert {name: told[name] for name in there} == there


# -- what it advises -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("give another --node-id, or wait", "give another --rdzv-conf node_id=..., or wait"),
        ("start hetserver there, or check --server", "start hetserver there, or check --rdzv-endpoint"),
        ("widen --port-range, or", "widen --rdzv-conf port_range=..., or"),
        (
            "start hetagent with --local-addr or --interface",
            "start torchrun with --local-addr or --rdzv-conf interface=...",
        ),
        ("--ca-cert /etc/ca.pem is no PEM file", "--rdzv-conf ca_cert=/etc/ca.pem is no PEM file"),
        ("set HET_TOKEN or give --token-file", "set HET_TOKEN or give --rdzv-conf token_file=..."),
        ("start hetserver with --token-file", "start hetserver with --token-file"),
        ("of its --tls-client-ca", "of its --tls-client-ca"),
        ("more --max-restarts", "more --max-restarts"),
    ],
)
def test_advice_names_options_that_torchrun_has(said: str, told: str) -> None:
    assert as_rdzv_conf(said) == told
    assert as_rdzv_conf(told) == told


def test_flags_that_torchrun_shares_are_its_own() -> None:
    torchruns = {name.replace("-", "_") for name in get_args_parser()._option_string_actions}
    assert {name for name in OPTIONS if f"__{name}" in torchruns} == torchrun_conf.TORCHRUNS_FLAGS


def test_whatever_is_told_advises_so(capsys: pytest.CaptureFixture[str]) -> None:
    _tell("a", "check --server")
    assert capsys.readouterr().err == "hetrdzv[a]: check --rdzv-endpoint\n"
    with pytest.raises(TlsError, match=r"give --rdzv-conf client_cert=\.\.\. too"):
        create_handler(params(client_key="/key"))
    with pytest.raises(RendezvousConnectionError, match="check --rdzv-endpoint"):
        create_handler(params(endpoint="host.invalid", connect_timeout_s=0)).next_rendezvous()
    with (
        port_holder() as (handler, _, port),
        hold_port("127.0.0.1", (port, port)),
        pytest.raises(RendezvousConnectionError, match="widen --rdzv-conf port_range="),
    ):
        handler._offered_port()
    assert str(_exit_error(directive("exit", why="give another --node-id"))).endswith("node_id=...")


@pytest.mark.parametrize(
    ("given", "warned"), [({"stop_timeout_s": 29}, True), ({"stop_timeout_s": 30}, False), ({}, False)]
)
def test_less_time_than_torch_takes_to_stop_is_warned_of(
    given: dict[str, Any], warned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torchrun_handler._TimedLine, "start", lambda line: None)
    handler = TorchrunHandler(conf_of(params(endpoint="127.0.0.1:9", **given)), None)
    handler._connect()
    handler.shutdown()
    assert ("warning: stop_timeout_s=29 is less than the 30 s" in capsys.readouterr().err) == warned


def test_torch_stops_workers_before_a_restart_with_its_own_default() -> None:
    default = inspect.signature(LocalElasticAgent._shutdown).parameters["timeout"].default
    assert default == torchrun_conf.TORCHS_STOP_TIMEOUT_S
    assert "self._shutdown()" in inspect.getsource(inspect.unwrap(LocalElasticAgent._stop_workers))


# -- the token -----------------------------------------------------------------------------------------------


def test_the_token_leaves_the_environment_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HET_TOKEN", "secret")
    assert take_token(None) == "secret"
    assert "HET_TOKEN" not in os.environ
    assert take_token(None) == "secret"


def test_a_token_file_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HET_TOKEN", "secret")
    file = tmp_path / "token"
    file.write_text("other\n")
    assert take_token(file) == "other"
    assert "HET_TOKEN" not in os.environ
    with pytest.raises(AccessError, match="cannot be read"):
        take_token(tmp_path / "none")


def test_a_bad_token_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HET_TOKEN", "sec ret")
    with pytest.raises(AccessError, match="must hold one token") as refusal:
        create_handler(params())
    assert "sec" not in str(refusal.value)


# -- the server's word ---------------------------------------------------------------------------------------


class ScriptedLine:
    """A line whose directives a test writes."""

    handed_at = 0.0

    def __init__(self) -> None:
        self.news: list[DirectiveReply] = []
        self.said: list[tuple[Any, ...]] = []

    def take(self) -> list[DirectiveReply]:
        taken, self.news = self.news, []
        return taken

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *words: self.said.append((name, *words))


class LoudLine(ScriptedLine):
    """One that can be waited for."""

    def __init__(self, *news: DirectiveReply) -> None:
        super().__init__()
        self._read_fd, self._write_fd = os.pipe()
        for one in news:
            self.say(one)

    def fileno(self) -> int:
        return self._read_fd

    def say(self, one: DirectiveReply) -> None:
        self.news.append(one)
        os.write(self._write_fd, b"!")

    def take(self) -> list[DirectiveReply]:
        if self.news:
            os.read(self._read_fd, len(self.news))
        return super().take()

    def end(self) -> None:
        os.close(self._read_fd)
        os.close(self._write_fd)


@contextlib.contextmanager
def port_holder(*news: DirectiveReply) -> Iterator[tuple[TorchrunHandler, Any, int]]:
    """Node a, which may offer one port; what the server tells it; the port."""
    with hold_port("127.0.0.1", None) as free:
        port: int = free.getsockname()[1]
    handler, line = (
        TorchrunHandler(conf_of(params(node_id="a", port_range=f"{port}-{port}")), None),
        LoudLine(*news),
    )
    handler._place = Place(lambda: ("127.0.0.1", None), fixed=True)
    handler._session = object()  # type: ignore[assignment]
    handler._line = line  # type: ignore[assignment]
    handler._leaver = weakref.finalize(handler, int)
    try:
        yield handler, line, port
    finally:
        handler._line = None
        handler.shutdown()
        line.end()


@pytest.mark.parametrize("news", [[directive("stop", 1)], []], ids=["stop", "time-out"])
def test_a_round_whose_agents_did_not_meet_frees_its_port(
    news: list[DirectiveReply], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: a store that only the garbage collector would close holds the one port of a port_range."""
    monkeypatch.setattr(torchrun_handler, "STORE_TIMEOUT", timedelta(seconds=0.05))
    gc.disable()
    try:
        with port_holder(*news) as (handler, line, port):
            assert handler._offered_port() == port
            assert handler._enter(line, start("a", port, group_rank=0)) is None
            assert handler._offered_port() == port
    finally:
        gc.enable()


def assigned(
    handler: TorchrunHandler, line: Any, start_: DirectiveReply, after: Callable[[], None]
) -> list[Any]:
    """The workers of two that torch's agent makes, when something happens as soon as the agents have met."""
    info = handler._enter(line, start_)
    assert info is not None
    after()
    spec = WorkerSpec(role="default", local_world_size=2, rdzv_handler=handler, entrypoint="train.py")
    made: list[Any] = SimpleElasticAgent._assign_worker_ranks(
        None,
        info.store,
        info.rank,
        info.world_size,
        spec,  # type: ignore[arg-type]
    )
    return made


def test_the_master_goes_on_when_a_member_never_tells_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchrun_handler, "STORE_TIMEOUT", timedelta(seconds=10))
    with port_holder() as (handler, line, port):
        handler._offered_port()
        peer = threading.Thread(target=lambda: client(port).set("hetrdzv/round_1/1", "a"))
        peer.start()
        workers = assigned(
            handler, line, start("a", port, group_rank=0), lambda: line.say(directive("stop", 1))
        )
        peer.join()
        assert [worker.global_rank for worker in workers] == [0, 1]
        assert workers[0].world_size > 1000  # none that could come about
        assert handler.num_nodes_waiting() == 1
        assert [said[0] for said in line.said] == ["started"]


def master_store() -> TCPStore:
    """That of node b, which has come to its round."""
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=10), wait_for_workers=False)
    store.set("hetrdzv/round_1/0", "b")
    return store


@pytest.mark.parametrize("what", ["stop", "stop, store gone", "store gone, then stop"])
def test_a_member_goes_on_when_the_master_never_assigns_ranks(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with port_holder() as (handler, line, _):
        stores = [master_store()]

        def stop(*_: object) -> None:
            line.say(directive("stop", 1))
            handler._heed(line)

        def end() -> None:
            if "gone" in what:
                stores.clear()
            if what.startswith("stop"):
                stop()

        monkeypatch.setattr(handler, "_await_word", stop)
        workers = assigned(handler, line, start("b", stores[0].port), end)
        assert {worker.world_size for worker in workers} == {3 * 1024}
        assert 0 not in {worker.global_rank for worker in workers}
        assert handler.num_nodes_waiting() == 1


def test_a_store_that_fails_in_a_round_that_goes_on_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchrunHandler, "_await_word", lambda handler, line: None)
    with port_holder() as (handler, line, _):
        stores = [master_store()]
        with pytest.raises(RuntimeError):
            assigned(handler, line, start("b", stores[0].port), stores.clear)


def test_the_ranks_that_torch_assigns_are_its_own() -> None:
    with port_holder() as (handler, line, port):
        handler._offered_port()
        workers = assigned(handler, line, start("a", port, group_rank=0, nnodes=1), lambda: None)
        assert [(worker.global_rank, worker.world_size) for worker in workers] == [(0, 2), (1, 2)]


@pytest.fixture
def in_round_2() -> Iterator[tuple[TorchrunHandler, ScriptedLine]]:
    handler, line = TorchrunHandler(conf_of(params()), None), ScriptedLine()
    handler._line, handler._round, handler._in_round = line, 2, True  # type: ignore[assignment]
    yield handler, line
    handler._line = None


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
    in_round_2: tuple[TorchrunHandler, ScriptedLine], news: list[DirectiveReply], waiting: int
) -> None:
    handler, line = in_round_2
    assert handler.num_nodes_waiting() == 0
    line.news = news
    assert handler.num_nodes_waiting() == waiting
    assert handler.num_nodes_waiting() == waiting
    assert line.said == []


def test_all_agents_stop_their_workers_at_once(in_round_2: tuple[TorchrunHandler, ScriptedLine]) -> None:
    """Whichever asks first waits as long as the others may take to ask."""
    handler, line = in_round_2
    handler._asked_at = time.monotonic() - 0.3  # torch's monitor_interval, as it was seen
    assert handler.num_nodes_waiting() == 0
    line.handed_at = time.monotonic()
    line.news = [directive("stop", 2)]
    assert handler.num_nodes_waiting() == 1
    assert time.monotonic() >= line.handed_at + 0.3


def test_a_round_that_ends_before_this_node_asked_gives_the_others_time(
    in_round_2: tuple[TorchrunHandler, ScriptedLine],
) -> None:
    handler, line = in_round_2
    line.handed_at = time.monotonic() - LONGEST_INTERVAL_S + 0.1
    line.news = [directive("stop", 2)]
    assert handler.num_nodes_waiting() == 1
    assert time.monotonic() >= line.handed_at + LONGEST_INTERVAL_S


def test_a_failure_is_told_only_in_a_round_that_nobody_ended(
    in_round_2: tuple[TorchrunHandler, ScriptedLine],
) -> None:
    handler, line = in_round_2
    handler._tell_failure(line)  # type: ignore[arg-type]
    ((what, round_number, *_),) = line.said
    assert (what, round_number) == ("failed", 2)
    line.news = [directive("stop", 2)]
    handler._heed(line)  # type: ignore[arg-type]
    handler._tell_failure(line)  # type: ignore[arg-type]
    assert len(line.said) == 1


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"exit_code": 1, "round": 0}, RendezvousConnectionError),  # what a session says of itself
        ({"exit_code": 1, "round": 2}, RendezvousClosedError),
        ({"exit_code": 3, "round": 0, "outcome": "cancelled"}, RendezvousClosedError),
        ({"exit_code": 0, "round": 2, "outcome": "succeeded"}, RendezvousGracefulExitError),
        ({"exit_code": 4, "round": 0, "reason": "drained"}, RendezvousGracefulExitError),
        ({"exit_code": 4, "round": 2, "outcome": "failed"}, RendezvousClosedError),
    ],
)
def test_how_torchs_agent_is_sent_away(fields: dict[str, Any], error: type[Exception]) -> None:
    raised = _exit_error(directive("exit", **{"round_number": fields.pop("round"), **fields}))
    assert type(raised) is error
    assert str(raised) == "for a reason"


@pytest.mark.parametrize(
    "fields", [{"exit_code": 0, "outcome": "succeeded"}, {"exit_code": 4, "reason": "drained"}]
)
def test_torchrun_exits_as_hetagent_would(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's launch_agent() fails of a graceful end itself."""
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "")  # set by torchrun; as before afterwards
    words = ["--rdzv-backend", "hetrdzv", "--rdzv-endpoint", "h", "--rdzv-id", "job", "train.py"]
    with port_holder(directive("exit", **fields)) as (handler, _, _):
        monkeypatch.setattr("hetagent.torchrun_handler.TorchrunHandler", lambda conf, token: handler)
        with pytest.raises(SystemExit) as end:
            main.__wrapped__(words)  # type: ignore[attr-defined]
        assert end.value.code == fields["exit_code"]
        assert handler.is_closed()


def test_the_failure_is_read_off_torchs_agent() -> None:
    def agent(failed: dict[int, ProcessFailure]) -> Any:
        result = RunResult(WorkerState.FAILED, failures=failed)
        return failure_of_callers(), result

    killed, _ = agent({7: ProcessFailure(local_rank=1, pid=1, exitcode=-9, error_file="<N/A>")})
    assert (killed.rank, killed.local_rank, killed.signal, killed.exit_code) == (7, 1, "SIGKILL", None)
    failed, _ = agent({3: ProcessFailure(local_rank=0, pid=1, exitcode=5, error_file="<N/A>")})
    assert (failed.rank, failed.exit_code, failed.signal, failed.message) == (3, 5, None, "exit code 5")
    unknown, _ = agent({})
    assert (unknown.rank, unknown.local_rank) == (-1, -1)


# -- a handler that is dropped -------------------------------------------------------------------------------


def test_a_dropped_handler_may_be_collected_in_its_lines_own_thread() -> None:
    talk, inherited = Talk(), _Inherited()
    inherited.take_over()
    inherited.add({"HET_ROUND": "3"})
    talk.begin()
    soon(talk.news)
    ended = threading.Event()
    talk.line._loop.call_soon_threadsafe(lambda: (_abandon(talk.line, inherited), ended.set()))
    talk.line._thread.join(10)
    assert ended.is_set()
    assert talk.client.heard("leave") == ["its agent is gone"]
    assert talk.line.fileno() == -1
    assert "HET_ROUND" not in os.environ


def test_a_line_that_has_ended_can_be_abandoned() -> None:
    talk = Talk()
    talk.begin()
    assert talk.line.leave("x", 10.0)
    talk.line.abandon("x")
    assert talk.line.fileno() == -1


def test_one_handler_does_not_take_back_what_another_has_set() -> None:
    old, new = _Inherited(), _Inherited()
    for one in (old, new):
        one.take_over()
        assert "HET_ROUND" not in os.environ
        one.add({"HET_ROUND": "1"})
    old.take_back()
    assert os.environ["HET_ROUND"] == "1"
    new.take_back()
    assert "HET_ROUND" not in os.environ
