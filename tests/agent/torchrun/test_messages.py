"""What the plug-in tells torchrun's users."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.agent.torchrun.driver import directive, offered_port, params, port_holder
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)

from hetagent.node.network import AdvertisedAddress, hold_port
from hetagent.torchrun import create_handler, messages
from hetagent.torchrun.messages import find_first_failure, make_exit_error, translate_flags
from hetrdzv.auth.tls import TlsError
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.rounds import RootCause


def test_advice_says_what_flags_are_called_here() -> None:
    with pytest.raises(TlsError) as tls:
        create_handler(params(client_key="/key"))
    with pytest.raises(RendezvousConnectionError) as unreachable:
        create_handler(params(endpoint="host.invalid", connect_timeout_s=0)).next_rendezvous()
    with (
        port_holder() as (handler, port),
        hold_port("127.0.0.1", (port, port)),
        pytest.raises(RendezvousConnectionError) as no_port,
    ):
        offered_port(handler)
    with port_holder() as (handler, _):
        connection: Any = handler._connection
        connection.place = AdvertisedAddress("192.0.2.7", "eth0", is_chosen=False)
        connection.server.session.is_server_away = False
        with pytest.raises(RendezvousConnectionError, match=r"its address 192\.0\.2\.7 is gone: restart it"):
            offered_port(handler)
    refused = make_exit_error(directive("exit"))
    for error in (tls.value, unreachable.value, no_port.value, refused):
        assert str(error).endswith(translate_flags("")), error


LATE = RootCause(reason=Reason(code="join_timeout", message="1 of 2 nodes ready"))
CUT_OFF = RootCause(reason=Reason(code="no_master", message="no node can be master"))
FAILED = RootCause(reason=Reason(code="worker_failed", message="rank 0 on a exited with code 1"))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"exit_code": 1, "round": 0}, RendezvousConnectionError),  # the session's own
        ({"exit_code": 1, "round": 2}, RendezvousClosedError),
        ({"exit_code": 3, "round": 0, "outcome": "cancelled"}, RendezvousClosedError),
        ({"exit_code": 1, "round": 0, "outcome": "failed", "root_cause": LATE}, RendezvousTimeoutError),
        ({"exit_code": 1, "round": 2, "outcome": "failed", "root_cause": FAILED}, RendezvousClosedError),
        ({"exit_code": 1, "round": 2, "outcome": "failed", "root_cause": CUT_OFF}, RendezvousClosedError),
        ({"exit_code": 0, "round": 2, "outcome": "succeeded"}, RendezvousGracefulExitError),
        ({"exit_code": 4, "round": 0, "code": "drained"}, RendezvousGracefulExitError),
        ({"exit_code": 4, "round": 2, "outcome": "failed"}, RendezvousClosedError),
    ],
)
def test_how_torchs_agent_is_sent_away(fields: dict[str, Any], error: type[Exception]) -> None:
    raised = make_exit_error(directive("exit", **{"round_number": fields.pop("round"), **fields}))
    assert type(raised) is error
    advises = fields.get("root_cause") is CUT_OFF or (fields["exit_code"] == 1 and "outcome" not in fields)
    said = "the job failed: for a reason" if fields.get("outcome") == "failed" else "for a reason"
    assert str(raised) == (translate_flags(said) if advises else said)


@pytest.mark.parametrize(
    ("noticed", "first"),
    [
        ([(1, -9, None), (0, -15, 5.0)], 1),  # gone at once; rank 0 has lost it, and was still unwinding
        ([(0, 1, 5.4), (1, -9, None)], 1),
        ([(0, 1, 5.6), (1, 1, 5.2)], 1),  # in the same second
        ([(1, 1, 5.6), (0, -15, 5.2)], 0),
        ([(1, 1, 5.6), (0, -15, None)], 1),  # torch has stopped rank 0
        ([(1, -15, None), (0, 1, 5.6)], 1),  # somebody else has stopped rank 1
    ],
)
def test_of_several_failures_the_first_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    noticed: list[tuple[int, int, float | None]],
    first: int,
) -> None:
    failures = {}
    for rank, code, raised_at in noticed:
        file = tmp_path / str(rank)
        if raised_at is not None:
            file.write_text('{"message": {"message": "", "extraInfo": {"timestamp": "5"}}}')
            os.utime(file, (raised_at, raised_at))
        failures[rank] = ProcessFailure(rank, 1, code, str(file))
    monkeypatch.setattr(messages, "find_run_result", lambda: RunResult(WorkerState.FAILED, {}, failures))
    assert find_first_failure().rank == first
