"""Exit statuses: what whoever has started an agent can go by."""

from typing import Any

import pytest
from tests.agent.torchrun.driver import directive

from hetagent.statuses import get_exit_status
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.rounds import RootCause, WorkerFailure


def failed(kind: str, exit_code: int | None = None) -> dict[str, Any]:
    """What the server says of a job that failed."""
    failure = None if exit_code is None else WorkerFailure(local_rank=0, rank=0, exit_code=exit_code)
    cause = RootCause(reason=Reason(code=kind, message="m"), failure=failure)
    return {"code": "failed", "outcome": "failed", "root_cause": cause, "exit_code": exit_code or 1}


@pytest.mark.parametrize(
    ("said", "status", "fixed"),
    [
        ({"code": "succeeded", "outcome": "succeeded", "exit_code": 0}, 0, 0),
        (failed("worker_failed", 7), 7, 1),
        (failed("worker_failed", 4), 4, 1),
        (failed("worker_failed"), 1, 1),
        (failed("join_timeout"), 69, 69),
        (failed("master_unreachable"), 1, 1),
        ({"code": "cancelled", "outcome": "cancelled", "exit_code": 3}, 3, 3),
        ({"code": "drained", "exit_code": 4}, 4, 4),
        ({"code": "unreachable", "exit_code": 1}, 69, 69),
        ({"code": "no server", "exit_code": 1}, 69, 69),
        ({"code": "refused", "exit_code": 1}, 71, 71),
        ({"code": "replaced", "exit_code": 1}, 71, 71),
        ({"code": "rejected", "exit_code": 1}, 71, 71),
        ({"code": "broken", "exit_code": 1}, 1, 1),
    ],
)
def test_the_status_says_what_to_do_next(said: dict[str, Any], status: int, fixed: int) -> None:
    outcome = directive("exit", 0, **said)
    assert (get_exit_status(outcome, fixed=False), get_exit_status(outcome, fixed=True)) == (status, fixed)


def test_a_node_that_left_by_itself_is_unfit() -> None:
    assert get_exit_status(None, fixed=False) == get_exit_status(None, fixed=True) == 71


@pytest.mark.parametrize(("never", "status"), [(True, 2), (False, 69)])
def test_a_world_that_can_never_be_is_no_reason_to_try_again(never: bool, status: int) -> None:
    code = ReasonCode.IMPOSSIBLE_WORLD if never else ReasonCode.JOIN_TIMEOUT
    cause = RootCause(reason=code.reason(why=ReasonCode.GROUP_FAILED.reason(), timeout_s=4.0))
    said = {"code": "failed", "outcome": "failed", "root_cause": cause, "exit_code": 1}
    assert get_exit_status(directive("exit", 0, **said), fixed=False) == status
