"""What a person is told to do next."""

from dataclasses import replace

import pytest

from hetrdzv.protocol.facts import reasons
from hetrdzv.protocol.facts.causes import FailedWorker, JoinTimeout, WorkerFault
from hetrdzv.protocol.facts.parts import NoWorld, WorldBounds
from hetrdzv.protocol.facts.reasons import Reason
from hetrdzv.protocol.failure import Failure
from hetrdzv.protocol.hangs import culprits_of
from hetrdzv.words.advice import next_step, step_in_parts
from tests.support.hangs import behind
from tests.words.test_reasons import NOBODY, TOO_FEW, A, B, waits

NEVER = NoWorld(bounds=WorldBounds(least=5, most=5, multiple=1, min_nodes=1, max_nodes=1), never=(1,))
TWO_STOPPED = replace(
    behind(1, "b", waiting=[0], stopped=True),
    ranks=(1, 2, 3),
    culprits=culprits_of([("b", 1, 11), ("b", 2, 12), ("c", 3, 47)]),
)


def exited(exit_code: int | None, message: str, rank: int = 0) -> reasons.Failed:
    failure = Failure(rank=rank, local_rank=rank, exit_code=exit_code, message=message)
    return reasons.Failed(cause=WorkerFault(worker=FailedWorker.of("a", failure)))


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (reasons.Succeeded(), ""),
        (reasons.Runs(round=1, nodes=2, world_size=4), ""),
        (
            reasons.Runs(round=2, nodes=1, world_size=1, lost=B),
            "b is lost: start hetagent on b again, or on another node in place of it",
        ),
        (waits(reasons.ToStop(nodes=B, checked=False, until=535.0)), ""),
        (waits(TOO_FEW), "start hetagent for group 'job' on 1 more node"),
        (
            waits(reasons.TooFew(ready=A, missing=3, unit="slot")),
            "start hetagent for group 'job' on nodes with 3 more slots",
        ),
        (
            waits(reasons.TooFew(ready=A, missing=1, in_place_of=B)),
            (
                "start hetagent on b again, or on another node in place of it; "
                "to go on with fewer nodes: start all agents anew with a smaller --nnodes"
            ),
        ),
        (
            waits(reasons.TooFew(ready=NOBODY, missing=1, in_place_of=B)),
            "start hetagent on b again, or on another node in place of it",
        ),
        (
            waits(reasons.TooFew(ready=A, missing=1, in_place_of=B, drained=B)),
            (
                "b is drained; to let b join again: hetctl undrain job b, then start hetagent there; "
                "or start it on another node"
            ),
        ),
        (
            waits(reasons.TooFew(ready=NOBODY, missing=2, since=300.0)),
            "start hetagent for group 'job' on 2 more nodes; to give the job up: hetctl cancel job",
        ),
        (
            reasons.Stalls(round=4, hang=behind(2, "b"), since=460.0),
            "to see where the ranks are: hetctl stacks job; to begin the round again: hetctl restart job",
        ),
        (
            reasons.Stalls(round=4, hang=behind(2, "b", stopped=True), since=460.0, ends_at=600.0),
            "to let it go on: kill -CONT PID on its node; to see where the ranks are: hetctl stacks job",
        ),
        (
            reasons.Stalls(round=4, hang=behind(2, "b", stopped=True, pid=4711), since=460.0, ends_at=600.0),
            "to let it go on: kill -CONT 4711 on b; to see where the ranks are: hetctl stacks job",
        ),
        (
            reasons.Stalls(round=4, hang=TWO_STOPPED, since=460.0, ends_at=600.0),
            (
                "to let them go on: kill -CONT 11 12 on b, kill -CONT 47 on c; "
                "to see where the ranks are: hetctl stacks job"
            ),
        ),
        (
            reasons.Stalls(round=4, hang=behind(2, "b", pid=4711), since=460.0, ends_at=600.0),
            "rank 2 is process 4711 on b; to see where the ranks are: hetctl stacks job",
        ),
        (reasons.Cancelled(), "to begin again: hetctl restart job, then start hetagent on each node"),
        (
            reasons.Stalls(round=4, hang=behind(2, "b"), since=460.0, ends_at=600.0),
            "to see where the ranks are: hetctl stacks job",
        ),
        (
            reasons.Failed(
                cause=WorkerFault(worker=FailedWorker(node_id="a", rank=0, local_rank=0, exit_code=1))
            ),
            (
                "it exited without a traceback: what it wrote last may say more "
                "(all of it with hetagent -t 3 --log-dir DIR); to begin again: start hetagent on each node"
            ),
        ),
        (
            exited(1, 'Traceback\n  File "/work/train.py", line 7, in f\nValueError: no'),
            "to begin again, once that is mended: start hetagent on each node",
        ),
        (
            exited(
                1,
                'Traceback\n  File "/w/train.py", line 7, in f\n  File "/lib/python3.11/s.py", line 1, in load\n'
                "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so",
            ),
            (
                "if the checkpoint is trusted, start hetagent with TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in its "
                "environment (it is for calls of torch.load without weights_only); "
                "to begin again: start hetagent on each node"
            ),
        ),
        (
            exited(2, "usage: ap.py [-h]\nap.py: error: the following arguments are required: --data"),
            "to begin again, once that is mended: start hetagent on each node",
        ),
        (
            exited(2, "ap.py: error: unrecognized arguments: --lrr 3 --nnodes 2"),
            "if hetagent should get --nnodes, put it before the script; to begin again: start hetagent on each node",
        ),
        (
            exited(2, "ap.py: error: unrecognized arguments: --nnodes=2 --nproc_per_node 2"),
            (
                "if hetagent should get --nnodes and --nproc_per_node, put them before the script; "
                "to begin again: start hetagent on each node"
            ),
        ),
        (
            exited(None, "script 'nowhere.py' does not exist", rank=-1),
            "to begin again, once that is mended: start hetagent on each node",
        ),
        (
            exited(137, "Killed"),
            (
                "SIGKILL is most often the kernel, out of memory: see dmesg on a; "
                "to begin again: start hetagent on each node"
            ),
        ),
        (
            reasons.Failed(
                cause=WorkerFault(kind="hang", worker=FailedWorker(node_id="a", rank=0, local_rank=0))
            ),
            (
                "to see where the ranks were: hetctl stacks job; "
                "to begin again, once that is mended: start hetagent on each node"
            ),
        ),
        (
            reasons.Failed(cause=JoinTimeout(within_s=12.0, ready=A, world=NEVER), stays=False),
            (
                "give a --world-size that so many --nnodes with so many --gpus can have; "
                "to begin again: start hetagent on each node"
            ),
        ),
        (
            reasons.Failed(cause=JoinTimeout(within_s=12.0, ready=NOBODY), stays=True),
            (
                "start the agents within --join-timeout-s of each other, or ask for fewer --nnodes; "
                "to begin again: hetctl restart job, then start hetagent on each node"
            ),
        ),
    ],
)
def test_what_to_do(reason: Reason, text: str) -> None:
    assert next_step("job", reason) == text


def test_commands_are_apart() -> None:
    parts = step_in_parts("job", reasons.Stalls(round=4, hang=behind(2, "b"), since=460.0))
    assert parts[1::2] == ["hetctl stacks job", "hetctl restart job"]
    assert step_in_parts("job", reasons.Succeeded()) == [""]
