"""What a person is told to do next."""

from typing import Any

import pytest

from hetrdzv.protocol.failure import Failure
from hetrdzv.protocol.hangs import Hang
from hetrdzv.protocol.reasons import departures, ends, events, hangs, waiting
from hetrdzv.protocol.reasons.advice import next_step
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.reasons.waiting import Ready
from hetrdzv.protocol.texts.who import Nodes
from tests.support.hangs import behind

A, NOBODY = Ready(Nodes.of(["a"]), 2), Ready(want=2)
AGAIN = "to begin again: start hetagent on each node"
STACKS = "to see where the ranks are: hetctl stacks job"


def exited(exit_code: int | None, message: str = "", rank: int = 0, signal: str | None = None) -> Reason:
    failure = Failure(rank=rank, local_rank=rank, exit_code=exit_code, message=message, signal=signal)
    return ends.worker_failed("a", failure)


@pytest.mark.parametrize(
    ("why", "text"),
    [
        (events.group_succeeded(), ""),
        (waiting.round_running(1, 2, 4), ""),
        (
            waiting.round_running(2, 1, 1, lost=["b"]),
            "b is lost: start hetagent on b again, or on another node in place of it",
        ),
        (waiting.stopping(["b"]), ""),
        (waiting.too_few(A, 1), "start hetagent for group 'job' on 1 more node"),
        (
            waiting.too_few(A, 3, unit="slot"),
            "start hetagent for group 'job' on nodes with 3 more slots",
        ),
        (
            waiting.too_few(A, 0, unit="slot"),
            "start hetagent for group 'job' on nodes with other numbers of slots",
        ),
        (
            waiting.too_few(A, 1, gone=["b"]),
            (
                "start hetagent on b again, or on another node in place of it; "
                "to go on with fewer nodes: start all agents again with a smaller --nnodes"
            ),
        ),
        (
            waiting.too_few(NOBODY, 1, gone=["b"]),
            "start hetagent on b again, or on another node in place of it",
        ),
        (
            waiting.too_few(A, 1, gone=["b"], drained=["b"]),
            (
                "b is drained; to let b join again: hetctl undrain job b, then start hetagent there; "
                "or start it on another node"
            ),
        ),
        (
            waiting.too_few(NOBODY, 2, since=300.0),
            "start hetagent for group 'job' on 2 more nodes; to give the job up: hetctl cancel job",
        ),
        (
            waiting.no_allowed_master(A, "zone=x"),
            "start hetagent for group 'job' on a node that may be master",
        ),
        (ends.cancelled(), "to begin again: hetctl restart job, then start hetagent on each node"),
    ],
)
def test_what_to_do(why: Reason, text: str) -> None:
    assert next_step("job", why) == text


@pytest.mark.parametrize(
    ("facts", "until", "text"),
    [
        (behind(2, "b"), None, f"{STACKS}; to begin the round again: hetctl restart job"),
        (behind(2, "b"), 600.0, STACKS),
    ],
)
def test_what_to_do_about_a_hang(facts: Hang, until: float | None, text: str) -> None:
    assert next_step("job", hangs.hang(4, facts, 460.0, until=until)) == text


def timeout(**more: Any) -> Reason:
    return ends.join_timeout(12.0, A, **more)


@pytest.mark.parametrize(
    ("why", "text"),
    [
        (
            exited(1),
            (
                "it exited without a traceback: what it wrote last may say more (all of it with hetagent -t 3 "
                f"--log-dir DIR); {AGAIN}"
            ),
        ),
        (exited(1, 'Traceback\n  File "/work/train.py", line 7, in f\nValueError: no'), AGAIN),
        (
            exited(2, "usage: ap.py [-h]\nap.py: error: the following arguments are required: --data"),
            AGAIN,
        ),
        (exited(None, "script 'nowhere.py' does not exist", rank=-1), AGAIN),
        (
            exited(
                1,
                'Traceback\n  File "/work/train.py", line 7, in f\nUnpicklingError: Weights only load failed. This',
            ),
            "if the checkpoint is trusted, start hetagent with TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in its environment; "
            + AGAIN,
        ),
        (
            exited(137, "Killed"),
            f"SIGKILL is most often the kernel, out of memory: see dmesg on a; {AGAIN}",
        ),
        (
            exited(None, signal="SIGBUS"),
            f"SIGBUS is most often a full /dev/shm: see df /dev/shm on a; {AGAIN}",
        ),
        (
            ends.hangs(behind(2, "b", for_s=30.0)),
            f"to see where the ranks were: hetctl stacks job; {AGAIN}",
        ),
        (
            timeout(world="none", never=True),
            f"give a --world-size that so many --nnodes with so many --gpus can have; {AGAIN}",
        ),
        (
            timeout(),
            (
                "start the agents within --join-timeout-s of each other, or ask for fewer --nnodes or another "
                f"--world-size; {AGAIN}"
            ),
        ),
        (
            ends.node_lost("b", departures.departed(ReasonCode.CONNECTION_LOST)),
            "look at b: is it up, can it reach the server, and what did hetagent say last there?; " + AGAIN,
        ),
    ],
)
def test_what_to_do_about_a_failure(why: Reason, text: str) -> None:
    assert next_step("job", why, failed=True) == text


def test_a_group_that_stays_has_to_be_restarted() -> None:
    again = "to begin again: hetctl restart job, then start hetagent on each node"
    assert next_step("job", exited(1, "no"), failed=True, stays=True) == again
