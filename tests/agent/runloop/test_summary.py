"""The last block that an agent prints."""

from typing import Any

import pytest
from tests.agent.torchrun.driver import directive

from hetagent.cli.summary import format_summary
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.reasons import ends
from hetrdzv.protocol.reasons.advice import advise_next_step
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.rounds import RootCause, WorkerFailure

LINE = "=" * 72
WORKER = ends.worker_failed("a", WorkerFailure(local_rank=0, rank=0, exit_code=1, message="no such dataset"))


def exit_of(**fields: Any) -> Directive:
    reason = Reason(code="?", message=fields.pop("why", "the job failed: x"))
    return directive(
        "exit", fields.pop("round", 3), **{"code": "failed", "reason": reason, "exit_code": 1} | fields
    )


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        (None, ["ended    node gpu7 left: SIGTERM", "round    3 was the last of this node"]),
        (
            {"outcome": "succeeded", "code": "succeeded", "why": "the job succeeded", "restarts": 1},
            ["outcome  the job succeeded", "round    3, restarts spent 1"],
        ),
        ({"code": "refused", "why": "node id in use", "round": 0}, ["refused  node id in use"]),
        ({"code": "replaced", "why": "another agent", "round": 0}, ["refused  another agent"]),
        ({"code": "unreachable", "why": "no server answers", "round": 0}, ["ended    no server answers"]),
        ({"code": "drained", "why": "gpu7 was drained", "round": 0}, ["ended    gpu7 was drained"]),
    ],
)
def test_without_a_failure(fields: dict[str, Any] | None, lines: list[str]) -> None:
    outcome = None if fields is None else exit_of(**fields)
    number = 3 if outcome is None else outcome.round
    block = format_summary("bert", "gpu7", outcome, number, "" if outcome else "SIGTERM")
    assert block.splitlines() == [LINE, "job      bert", *lines, LINE]


@pytest.mark.parametrize(
    ("stays", "begin"),
    [(True, "hetctl restart bert, then start hetagent again"), (None, "start hetagent again")],
)
def test_a_failure_names_the_worker_its_words_the_logs_and_what_hetctl_would_say(
    stays: bool | None, begin: str
) -> None:
    failure = WorkerFailure(local_rank=1, rank=5, exit_code=1, message="Traceback\n  line\nValueError: x\n")
    cause = RootCause(reason=WORKER, round=2, node_id="gpu3", failure=failure)
    outcome = exit_of(outcome="failed", root_cause=cause, stays=stays)
    block = format_summary("bert", "gpu7", outcome, 3, "", last_words=["disk     full"], logs="/logs/bert_x1")
    assert block.splitlines()[4:] == [
        "disk     full",
        "logs     /logs/bert_x1",
        "",
        f"root cause: {WORKER.message}",
        "  node gpu3, rank 5 (local rank 1), exit code 1, round 2",
        f"  next: to begin again: {begin}",
        "  | Traceback",
        "  |   line",
        "  | ValueError: x",
        LINE,
    ]
    assert begin in advise_next_step("bert", WORKER, failed=True, stays=bool(stays))


def test_all_is_said_of_workers_that_could_not_be_started() -> None:
    """A message that is clipped ends before what to do."""
    failure = WorkerFailure(
        local_rank=-1, rank=-1, message=f"{'word ' * 100}\nstart every agent with the same --gpus"
    )
    cause = RootCause(reason=ends.worker_failed("a", failure), round=1, node_id="a", failure=failure)
    block = format_summary("bert", "gpu7", exit_of(outcome="failed", root_cause=cause), 3, "")
    assert block.splitlines()[-2] == "  | start every agent with the same --gpus"
