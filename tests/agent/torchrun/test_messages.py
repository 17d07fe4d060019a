"""What the plug-in tells torchrun's users."""

from typing import Any

import pytest
from tests.agent.torchrun.driver import directive, params, port_holder
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from torch.distributed.run import get_args_parser

from hetagent.node.network import hold_port
from hetagent.torchrun import create_handler
from hetagent.torchrun.conf import OPTIONS
from hetagent.torchrun.messages import TORCHRUNS_FLAGS, as_rdzv_conf, exit_error, tell
from hetrdzv.auth.tls import TlsError
from hetrdzv.protocol.directive import RootCauseReply
from hetrdzv.protocol.parts import Other


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
    assert {name for name in OPTIONS if f"__{name}" in torchruns} == TORCHRUNS_FLAGS


def test_all_messages_advise_so(capsys: pytest.CaptureFixture[str]) -> None:
    tell("a", "check --server")
    assert capsys.readouterr().err.endswith(" hetrdzv[a]: check --rdzv-endpoint\n")
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
    assert str(exit_error(directive("exit", why="give another --node-id"))).endswith("node_id=...")


LATE = RootCauseReply(reason=Other(kind="?"), kind="join_timeout", message="1 of 2 nodes ready")
FAILED = RootCauseReply(
    reason=Other(kind="?"), kind="worker_failed", message="rank 0 on a exited with code 1"
)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"exit_code": 1, "round": 0}, RendezvousConnectionError),  # the session's own
        ({"exit_code": 1, "round": 2}, RendezvousClosedError),
        ({"exit_code": 3, "round": 0, "outcome": "cancelled"}, RendezvousClosedError),
        ({"exit_code": 1, "round": 0, "outcome": "failed", "root_cause": LATE}, RendezvousTimeoutError),
        ({"exit_code": 1, "round": 2, "outcome": "failed", "root_cause": FAILED}, RendezvousClosedError),
        ({"exit_code": 0, "round": 2, "outcome": "succeeded"}, RendezvousGracefulExitError),
        ({"exit_code": 4, "round": 0, "code": "drained"}, RendezvousGracefulExitError),
        ({"exit_code": 4, "round": 2, "outcome": "failed"}, RendezvousClosedError),
    ],
)
def test_how_torchs_agent_is_sent_away(fields: dict[str, Any], error: type[Exception]) -> None:
    raised = exit_error(directive("exit", **{"round_number": fields.pop("round"), **fields}))
    assert type(raised) is error
    assert str(raised) == "for a reason"
