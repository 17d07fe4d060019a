"""What people read in a history: each message once."""

import pytest

from hetrdzv.protocol.errors import Difference
from hetrdzv.protocol.failure import Failure
from hetrdzv.protocol.reasons import departures, ends, events
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.texts.who import Nodes

FAILED = ends.worker_failed("gpu2", Failure(local_rank=0, rank=2, exit_code=1, message="bad data"))
LOST = ends.node_lost("gpu3", departures.lease_expired(5.0))
OTHER = [Difference("script", "train.py", "other.py")]


@pytest.mark.parametrize(
    ("event", "code", "message"),
    [
        (events.group_created("bert"), "group_created", "group 'bert' was created"),
        (events.job_began("bert", 2), "job_began", "job 2 of group 'bert' started"),
        (
            events.settings_changed("gpu2", [Difference("max_nodes", "2", "3")]),
            "settings_changed",
            "gpu2 changed the settings, since no other node was left: max_nodes 2 -> 3",
        ),
        (
            events.round_formed(3, 7, [("gpu1", range(2)), ("gpu2", range(2, 3))], 2, "lost"),
            "round_formed",
            "round 3 formed: world size 7, gpu1 ranks 0 and 1, gpu2 rank 2 and 2 more nodes",
        ),
        (
            events.started_unbounded(1, restarts=True),
            "started_unbounded",
            "started with 1 node, since no --nnodes was given; nodes that join later restart the job",
        ),
        (
            events.started_unbounded(2, restarts=False),
            "started_unbounded",
            "started with 2 nodes, since no --nnodes was given; nodes that join later are kept as spares",
        ),
        (events.training_began(3), "training_began", "round 3 trains"),
        (
            events.round_ended(3, FAILED, "failed"),
            "round_ended",
            "round 3 ended: rank 2 on gpu2 exited with code 1",
        ),
        (
            events.round_judged(3, LOST),
            "round_judged",
            "round 3 ended because gpu3 lost: no heartbeat for 5 s; failures elsewhere were a consequence",
        ),
        (
            events.restart_spent(FAILED, 1, 3),
            "restart_spent",
            "restart 1 of 3: rank 2 on gpu2 exited with code 1",
        ),
        (
            events.restart_spent(FAILED, 1, 2**40),
            "restart_spent",
            "restart 1: rank 2 on gpu2 exited with code 1",
        ),
        (events.group_succeeded(), "group_succeeded", "the job succeeded"),
        (
            events.group_succeeded(ends.never_met(0, 2)),
            "group_succeeded",
            f"the job succeeded, but {ends.never_met(0, 2)}",
        ),
        (
            events.group_failed(ends.without_restart(FAILED, "used_up", 3)),
            "group_failed",
            "the job failed: rank 2 on gpu2 exited with code 1; all 3 restarts are used up",
        ),
        (
            events.group_failed(ends.without_restart(FAILED, "used_up", 0)),
            "group_failed",
            "the job failed: rank 2 on gpu2 exited with code 1; max_restarts is 0",
        ),
        (
            events.group_failed(FAILED, Nodes.of(["gpu2"])),
            "group_failed",
            "the job failed: rank 2 on gpu2 exited with code 1; gpu2 gave up, and too few nodes are left",
        ),
        (
            events.node_joined("gpu1", 2, "10.0.0.1"),
            "node_joined",
            "gpu1 joined with 2 slots at 10.0.0.1",
        ),
        (
            events.node_joined("gpu1", 1, "10.0.0.1", "no GPU"),
            "node_joined",
            "gpu1 joined with 1 slot at 10.0.0.1, not ready yet: no GPU",
        ),
        (events.node_returned("gpu1"), "node_returned", "gpu1 is back"),
        (events.node_not_ready("gpu1", "no GPU"), "node_not_ready", "gpu1 is not ready: no GPU"),
        (events.node_ready("gpu1"), "node_ready", "gpu1 is ready"),
        (
            events.node_refused("gpu1", OTHER),
            "node_refused",
            "gpu1 is refused, since it gave script=other.py, and the group has script=train.py",
        ),
        (
            events.node_rejected("gpu1", departures.bad_address("g", "gpu1", "::1")),
            "node_rejected",
            departures.bad_address("g", "gpu1", "::1").message,
        ),
        (events.node_undrained("gpu1"), "node_undrained", "gpu1 may join again"),
        (
            events.node_used_last("gpu1", 3),
            "node_used_last",
            "workers on gpu1 caused the last 3 failures: other nodes are preferred to it",
        ),
        (events.node_succeeded("gpu1"), "node_succeeded", "all workers of gpu1 succeeded"),
        (
            events.daemon_started("gpu1", "orted"),
            "daemon_started",
            "gpu1, the master, has the others run orted",
        ),
        (
            events.stop_announced(3, ends.node_drained("gpu1"), 30.0),
            "stop_announced",
            "round 3 is about to end (gpu1 was drained): its workers have 30 s to save",
        ),
        (
            events.ready_to_stop(2.04),
            "ready_to_stop",
            "all nodes are ready to stop, 2.0 s after they were told",
        ),
        (
            events.notice_expired(["a", "b"], 30.0),
            "notice_expired",
            "a, b were not ready to stop within 30 s",
        ),
    ],
)
def test_events(event: Reason, code: str, message: str) -> None:
    assert (event.code, event.message) == (code, message)
