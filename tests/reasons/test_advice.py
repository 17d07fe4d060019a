"""What a person is told to do next."""

from hetrdzv.protocol.reasons import ends, events, hangs, waiting
from hetrdzv.protocol.reasons.advice import advise_next_step
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.reasons.waiting import ReadyCount
from hetrdzv.protocol.rounds import WorkerFailure
from hetrdzv.protocol.texts.node_rank_lists import NodeList
from tests.support.hangs import behind

B = NodeList.of(["b"])
A, NOBODY = ReadyCount(NodeList.of(["a"]), 2), ReadyCount(want=2)
TRACE = 'Traceback\n  File "/work/train.py", line 7, in f\n'


def exited(exit_code: int | None, message: str = "", rank: int = 0, signal: str | None = None) -> Reason:
    failure = WorkerFailure(rank=rank, local_rank=rank, exit_code=exit_code, message=message, signal=signal)
    return ends.worker_failed("a", failure)


def test_what_to_do_about_a_group() -> None:
    stuck = behind(2, "b")
    whys = [
        events.group_succeeded(),
        waiting.round_running(1, 2, 4),
        ReasonCode.STOPPING.reason("b"),
        waiting.too_few_nodes(A, 1),
        waiting.with_not_ready_nodes(waiting.too_few_nodes(A, 1), waiting.nodes_not_ready(B, "no GPU")),
        waiting.too_few_nodes(A, 3, unit="slot"),
        waiting.too_few_nodes(A, 0, unit="slot"),
        waiting.waits_for_replacement(waiting.too_few_nodes(A, 1), ["b"]),
        waiting.waits_for_replacement(waiting.too_few_nodes(NOBODY, 1), ["b"]),
        waiting.waits_for_replacement(waiting.too_few_nodes(A, 1), ["b"], ["b"]),
        waiting.too_few_nodes(NOBODY, 2, since=300.0),
        ReasonCode.NO_ALLOWED_MASTER.reason(ready=A, master="zone=x"),
        ReasonCode.GROUP_CANCELLED.reason(by="ada"),
        hangs.round_hangs(4, stuck, 460.0),
        hangs.round_hangs(4, stuck, 460.0, until=600.0),
    ]
    assert (
        [advise_next_step("job", why) or "-" for why in whys]
        == """\
-
-
-
start hetagent for group 'job' on 1 more node
see why b is not ready, or start hetagent for group 'job' on 1 more node
start hetagent for group 'job' on nodes with 3 more slots
start hetagent for group 'job' on nodes with other numbers of slots
start hetagent on b again, or on another node in place of it; to go on with fewer nodes: start all agents again with \
a smaller --nnodes
start hetagent on b again, or on another node in place of it
b is drained; to let b join again: hetctl undrain job b, then start hetagent there; or start it on another node
start hetagent for group 'job' on 2 more nodes; to give the job up: hetctl cancel job
start hetagent for group 'job' on a node that may be master
to begin again: hetctl restart job, then start hetagent again
to see where the ranks are: hetctl stacks job; to begin the round again: hetctl restart job
to see where the ranks are: hetctl stacks job""".splitlines()
    )


def test_what_to_do_about_a_failure() -> None:
    whys = [
        exited(1),
        exited(1, f"{TRACE}ValueError: no"),
        exited(2, "usage: ap.py [-h]\nap.py: error: the following arguments are required: --data"),
        exited(None, "script 'nowhere.py' does not exist", rank=-1),
        exited(1, f"{TRACE}UnpicklingError: Weights only load failed. This"),
        exited(137, "Killed"),
        exited(None, signal="SIGBUS"),
        ends.workers_hang(behind(2, "b", for_s=30.0)),
        ReasonCode.IMPOSSIBLE_WORLD.reason(why=waiting.too_few_nodes(A, 1), timeout_s=12.0),
        ReasonCode.JOIN_TIMEOUT.reason(why=waiting.too_few_nodes(A, 1), timeout_s=12.0),
        ReasonCode.NODE_LOST.reason("b", why=ReasonCode.CONNECTION_LOST.reason()),
    ]
    again = "to begin again: start hetagent again"
    steps = [advise_next_step("job", why, failed=True) for why in whys]
    assert all(step.endswith(again) for step in steps)
    assert (
        [step.removesuffix(again).removesuffix("; ") or "-" for step in steps]
        == """\
it exited without a traceback: what it wrote last may say more (all of it with hetagent -t 3 --log-dir DIR)
-
-
-
if the checkpoint is trusted, start hetagent with TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in its environment
SIGKILL is most often the kernel, out of memory: see dmesg on a
SIGBUS is most often a full /dev/shm: see df /dev/shm on a
to see where the ranks were: hetctl stacks job
give a --world-size that so many --nnodes with so many --gpus can have
start the agents within --join-timeout-s of each other, or ask for fewer --nnodes or another --world-size
look at b: is it up, can it reach the server, and what did its hetagent log last?""".splitlines()
    )


def test_a_group_that_stays_has_to_be_restarted() -> None:
    again = "to begin again: hetctl restart job, then start hetagent again"
    assert advise_next_step("job", exited(1, "no"), failed=True, stays=True) == again
