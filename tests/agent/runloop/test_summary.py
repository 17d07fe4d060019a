"""The last block that an agent prints."""

from typing import Any

import pytest

from hetagent.cli.summary import closing_block
from hetrdzv.protocol import codec
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.failure import Failure, RootCause
from hetrdzv.protocol.reasons import ends
from hetrdzv.protocol.reasons.advice import next_step
from hetrdzv.protocol.reasons.reason import Reason

WORKER = ends.worker_failed("a", Failure(local_rank=0, rank=0, exit_code=1, message="no such dataset"))


def directive(**fields: Any) -> Directive:
    reason = Reason(code="?", message=fields.pop("why", "the job failed: x"))
    default = {"kind": "exit", "version": "1", "round": 3, "code": "failed", "reason": reason}
    timing = {"poll_s": 1.0, "lease_s": 5.0, "stop_timeout_s": 30.0, "max_disconnect_s": 600.0}
    return codec.checked(Directive, default | timing | fields, unknown="ignore")


def block(outcome: Directive | None, round_number: int = 3, ended_by: str = "") -> list[str]:
    lines = closing_block("bert", "gpu7", outcome, round_number, ended_by).splitlines()
    assert lines[0] == lines[-1] == "=" * 72
    return lines[1:-1]


def test_success() -> None:
    outcome = directive(
        outcome="succeeded", code="succeeded", why="the job succeeded", restarts=1, exit_code=0
    )
    assert block(outcome) == ["job      bert", "outcome  the job succeeded", "round    3, restarts spent 1"]


def test_where_the_logs_are_is_said_before_the_root_cause() -> None:
    cause = RootCause(reason=Reason(code="?", message="not enough nodes"), round=3, node_id="")
    outcome = directive(outcome="failed", root_cause=cause)
    text = closing_block("bert", "gpu7", outcome, 3, "", last_words=["disk     full"], logs="/logs/bert_x1")
    assert text.splitlines()[4:7] == ["disk     full", "logs     /logs/bert_x1", ""]
    assert "logs" not in closing_block("bert", "gpu7", outcome, 3, "")


def test_a_failure_names_the_worker_and_shows_its_words() -> None:
    failure = Failure(local_rank=1, rank=5, exit_code=1, message="Traceback\n  line\nValueError: x\n")
    cause = RootCause(
        reason=Reason(code="?", message="rank 5 failed"),
        round=2,
        node_id="gpu3",
        failure=failure,
    )
    assert block(directive(outcome="failed", root_cause=cause))[3:] == [
        "",
        "root cause: rank 5 failed",
        "  node gpu3, rank 5 (local rank 1), exit code 1, round 2",
        "  next: to begin again: start hetagent on each node",
        "  | Traceback",
        "  |   line",
        "  | ValueError: x",
    ]


def test_all_is_said_of_workers_that_could_not_be_started() -> None:
    """A message that is clipped ends before what to do."""
    said = f"{'word ' * 100}\nstart every agent with the same --gpus"
    failure = Failure(local_rank=-1, rank=-1, message=said)
    cause = RootCause(reason=ends.worker_failed("a", failure), round=1, node_id="a", failure=failure)
    assert block(directive(outcome="failed", root_cause=cause))[-1] == (
        "  | start every agent with the same --gpus"
    )


@pytest.mark.parametrize(
    ("stays", "begin"),
    [
        (True, "hetctl restart bert, then start hetagent on each node"),
        (None, "start hetagent on each node"),
    ],
)
def test_what_to_do_is_what_hetctl_says(stays: bool | None, begin: str) -> None:
    cause = RootCause(reason=WORKER, failure=Failure(local_rank=0, rank=0, exit_code=1))
    told = block(directive(outcome="failed", stays=stays, root_cause=cause))
    assert told[-1] == f"  next: to begin again: {begin}"
    assert told[-1] == f"  next: {next_step('bert', WORKER, failed=True, stays=bool(stays))}"


def test_no_outcome() -> None:
    assert block(None, 2, "SIGTERM") == [
        "job      bert",
        "ended    node gpu7 left: SIGTERM",
        "round    2 was the last of this node",
    ]


def test_refused() -> None:
    refused = directive(code="refused", why="node id 'gpu7' is in use", round=0, exit_code=1)
    assert block(refused, 0)[1:] == ["refused  node id 'gpu7' is in use"]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("unreachable", "no server answers (http://h:1: connection refused); gave up after 60 s"),
        ("drained", "gpu7 was drained; to let it in again: hetctl undrain bert gpu7"),
        ("broken", "the thread that talks to the server broke, which is a bug"),
    ],
)
def test_what_ended_an_agent_that_nobody_refused(code: str, why: str) -> None:
    assert block(directive(code=code, why=why, round=0, exit_code=1), 0)[1:] == [f"ended    {why}"]
