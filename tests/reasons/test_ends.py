"""What ends rounds and jobs, and why nodes go: each message once."""

import pytest

from hetrdzv.protocol.failure import Ended, Failure
from hetrdzv.protocol.hangs import Hang
from hetrdzv.protocol.reasons import departures, ends, waiting
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.reasons.waiting import Ready
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.texts.who import Nodes
from tests.support.hangs import behind

HANG: Hang = behind(0, "gpu2", waiting=(1,), where="is at collective 4 of 5", for_s=30.0)
WAITED = "rank 1 has waited 30 s for rank 0 (gpu2), which is at collective 4 of 5"
TRACE = 'Traceback (most recent call last):\n  File "/w/train.py", line 7, in f\nValueError: x'
B = Nodes.of(["b"])
BOUNDS = GroupSpec(min_world_size=8, max_world_size=8)


def failed(exit_code: int | None = 1, message: str = "", rank: int = 2, **more: object) -> Reason:
    failure = Failure(local_rank=0, rank=rank, exit_code=exit_code, message=message, **more)  # type: ignore[arg-type]
    return ends.worker_failed("gpu2", failure)


BAD = failed(message="bad data")


@pytest.mark.parametrize(
    ("found", "code", "message", "briefly"),
    [
        (
            BAD,
            "worker_failed",
            "rank 2 on gpu2 exited with code 1: bad data",
            "rank 2 on gpu2 exited with code 1",
        ),
        (
            failed(message=TRACE),
            "worker_failed",
            "ValueError: x (train.py:7, rank 2 on gpu2)",
            "rank 2 on gpu2 failed",
        ),
        (
            failed(message=TRACE, lingers=True),
            "worker_failed",
            "rank 2 on gpu2 raised ValueError: x (train.py:7) and has not ended since",
            "rank 2 on gpu2 failed and has not ended since",
        ),
        (
            failed(None, "half a line", signal="SIGKILL"),
            "worker_failed",
            "rank 2 on gpu2 was killed by SIGKILL",
            "rank 2 on gpu2 was killed by SIGKILL",
        ),
        (
            failed(2, rank=-1),
            "worker_failed",
            "the program of gpu2 exited with code 2",
            "the program of gpu2 exited with code 2",
        ),
        (
            failed(None, "no such file", rank=-1),
            "start_failed",
            "gpu2 could not start its workers: no such file",
            "gpu2 could not start its workers",
        ),
        (
            ends.worker_failed(
                "a", Failure(local_rank=0, rank=0, exit_code=1), Ended(node_id="b", rank=4, others=2)
            ),
            "worker_failed",
            "rank 0 on a exited with code 1; rank 4 on b and 2 other workers had ended with exit code 0 before that",
            "rank 0 on a exited with code 1",
        ),
        (
            ends.hangs(HANG, "gpu2", 0),
            "behind",
            f"a worker hangs: {WAITED}",
            "rank 0 on gpu2 hangs",
        ),
        (ends.hangs(HANG), "behind", f"the workers hang: {WAITED}", "the workers hang"),
        (
            ends.without_restart(BAD, "used_up", 3),
            "worker_failed",
            "rank 2 on gpu2 exited with code 1: bad data; all 3 restarts are used up",
            "rank 2 on gpu2 exited with code 1; all 3 restarts are used up",
        ),
        (
            ends.without_restart(BAD, "used_up", 1),
            "worker_failed",
            "rank 2 on gpu2 exited with code 1: bad data; the only restart is used up",
            "rank 2 on gpu2 exited with code 1; the only restart is used up",
        ),
        (
            ends.without_restart(BAD, "used_up", 0),
            "worker_failed",
            "rank 2 on gpu2 exited with code 1: bad data",
            "rank 2 on gpu2 exited with code 1",
        ),
        (
            ends.without_restart(BAD, "permanent"),
            "worker_failed",
            "rank 2 on gpu2 exited with code 1: bad data; no restart, since it would end the same way",
            "rank 2 on gpu2 exited with code 1; no restart, since it would end the same way",
        ),
        (
            ends.without_restart(BAD, "no_restart_on"),
            "worker_failed",
            "rank 2 on gpu2 exited with code 1: bad data; no restart, since no_restart_on has exit code 1",
            "rank 2 on gpu2 exited with code 1; no restart, since no_restart_on has exit code 1",
        ),
    ],
)
def test_workers(found: Reason, code: str, message: str, briefly: str) -> None:
    assert (found.code, found.message, ends.briefly(found)) == (code, message, briefly)


def test_the_words_of_a_worker_are_a_quote() -> None:
    assert (BAD.quote, BAD.nodes, BAD.ranks, BAD.data) == (
        "bad data",
        ("gpu2",),
        ((2, 2),),
        {"exit_code": 1},
    )


@pytest.mark.parametrize(
    ("found", "code", "message"),
    [
        (
            ends.never_met(1, 3),
            "never_met",
            (
                "only 1 of 3 workers met: the others may have trained alone, unless they meet in another way than "
                "init_process_group with env:// or hvd.init()"
            ),
        ),
        (
            ends.never_met(0, 9),
            "never_met",
            (
                "ranks 0 to 8 never met: each may have trained alone, unless they meet in another way than "
                "init_process_group with env:// or hvd.init()"
            ),
        ),
        (
            ends.node_lost("b", departures.lease_expired(5.0)),
            "node_lost",
            "b lost: no heartbeat for 5 s",
        ),
        (
            ends.node_lost("b", departures.connection_lost()),
            "node_lost",
            "b lost: its connection was cut",
        ),
        (
            ends.node_lost("b", departures.agent_replaced()),
            "node_lost",
            "b lost: its agent was restarted",
        ),
        (
            ends.node_lost("b", departures.agent_died()),
            "node_lost",
            "b lost: its agent died, and its workers were stopped",
        ),
        (ends.node_left("b", departures.agent_left()), "node_left", "b left: its agent left"),
        (ends.node_left("b", departures.agent_left("SIGTERM")), "node_left", "b left: SIGTERM"),
        (
            ends.node_leaving("b", departures.agent_left(leaving=True)),
            "node_leaving",
            "b is leaving: its agent is leaving",
        ),
        (ends.node_leaving("b", departures.drained()), "node_leaving", "b is leaving: drained"),
        (ends.node_drained("b"), "node_drained", "b was drained"),
        (
            ends.consequences(ends.node_drained("b")),
            "node_drained",
            "b was drained; failures elsewhere were a consequence",
        ),
        (ends.workers_stopped("b"), "workers_stopped", "b stopped its workers on its own"),
        (ends.workers_stopped("b", "runs"), "workers_stopped", "b left the round, which runs"),
        (ends.nodes_joined(["b", "c"]), "nodes_joined", "b, c joined"),
        (
            ends.master_unreachable("b", "a", "connection refused"),
            "master_unreachable",
            "b cannot reach the master a: connection refused",
        ),
        (ends.restart_requested(), "restart_requested", "a restart was requested"),
        (
            ends.restart_requested(HANG),
            "restart_requested",
            f"a restart was requested; it hung: {WAITED}",
        ),
        (ends.cancelled(), "group_cancelled", "the job was cancelled"),
        (
            ends.cancelled("an admin", HANG),
            "group_cancelled",
            f"the job was cancelled by an admin; it hung: {WAITED}",
        ),
        (
            ends.no_node_can_be_master({"a": ["b"]}),
            "no_master",
            "no node can be master: a cannot be reached from b",
        ),
        (
            ends.join_timeout(60.0, Ready(B, 3)),
            "join_timeout",
            "not enough nodes joined within 60 s: 1 of 3 nodes ready (b)",
        ),
        (
            ends.join_timeout(60.0, Ready(want=2), late=waiting.not_ready(B, "no GPU")),
            "join_timeout",
            "not enough nodes joined within 60 s: 0 of 2 nodes ready; b is not ready: no GPU",
        ),
        (
            ends.join_timeout(60.0, Ready(B, 1), rule="zone=x"),
            "join_timeout",
            (
                "no node that may be master joined within 60 s: b is ready, but it may not be master, since master is "
                "zone=x"
            ),
        ),
        (
            ends.join_timeout(60.0, Ready(B, 1, 3), world=waiting.no_world(BOUNDS, [3]), never=True),
            "impossible_world",
            (
                "not enough nodes joined within 60 s: 1 node with 3 slots ready (b); nodes with 3 slots can never form "
                "a world whose size is 8"
            ),
        ),
        (ends.unknown(), "group_failed", "the job failed: unknown cause"),
        (
            departures.bad_address("g", "b", "127.0.0.1"),
            "bad_address",
            (
                "node 'b' offers address 127.0.0.1, but group 'g' has nodes on other hosts: start hetagent with "
                "--local-addr or --interface"
            ),
        ),
    ],
)
def test_others(found: Reason, code: str, message: str) -> None:
    assert (found.code, found.message) == (code, message)
