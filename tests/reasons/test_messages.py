"""Each message that a function makes once: `code: message`. Those that are templates stand beside their codes."""

from dataclasses import replace

from hetrdzv.core.version_drift import describe_version_differences
from hetrdzv.protocol.errors import SettingDifference
from hetrdzv.protocol.reasons import ends, events, hangs, snapshots, waiting
from hetrdzv.protocol.reasons.hangs import Hang
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.reasons.waiting import ReadyCount
from hetrdzv.protocol.rounds import EarlierSuccesses, WorkerFailure
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.snapshots import SnapshotId
from hetrdzv.protocol.states import StallKind
from hetrdzv.protocol.texts.node_rank_lists import NO_NODES, NodeList, RankList
from tests.support.hangs import behind, of_nobody

B, BC = NodeList.of(["b"]), NodeList.of(["b", "c"])
HANG = behind(0, "gpu2", waiting=(1,), where="is at collective 4 of 5", for_s=30.0)
TRACE = 'Traceback (most recent call last):\n  File "/w/train.py", line 7, in f\nValueError: x'


def check(found: list[Reason], expected: str) -> None:
    assert [f"{one.code}: {one.message}" for one in found] == expected.strip().splitlines()


def failed(exit_code: int | None = 1, message: str = "", rank: int = 2, **more: object) -> Reason:
    failure = WorkerFailure(local_rank=0, rank=rank, exit_code=exit_code, message=message, **more)  # type: ignore[arg-type]
    return ends.worker_failed("gpu2", failure)


BAD = failed(message="bad data")
LOST = ReasonCode.NODE_LOST.reason("b", why=ReasonCode.LEASE_EXPIRED.reason(for_s=5.0))


def test_workers() -> None:
    found = [
        BAD,
        failed(message=TRACE),
        failed(message=TRACE, lingers=True),
        failed(None, "half a line", signal="SIGKILL"),
        failed(2, rank=-1),
        failed(None, "no such file", rank=-1),
        ends.worker_failed(
            "a",
            WorkerFailure(local_rank=0, rank=0, exit_code=1),
            EarlierSuccesses(node_id="b", rank=4, others=2),
        ),
        ends.workers_hang(HANG),
        ends.workers_hang(of_nobody(0, 1)),
        ends.failure_without_restart(BAD, "used_up", 3),
        ends.failure_without_restart(BAD, "used_up", 0),
        ends.failure_without_restart(BAD, "permanent"),
        ends.failure_without_restart(BAD, "no_restart_on"),
    ]
    check(
        found,
        """
worker_failed: rank 2 on gpu2 exited with code 1: bad data
worker_failed: ValueError: x (train.py:7, rank 2 on gpu2)
worker_failed: ValueError: x (train.py:7, rank 2 on gpu2, has not ended since)
worker_failed: rank 2 on gpu2 was killed by SIGKILL
worker_failed: the program of gpu2 exited with code 2
start_failed: gpu2 could not start its workers: no such file
worker_failed: rank 0 on a exited with code 1; rank 4 on b and 2 other workers had ended with exit code 0 before that
behind: a worker hangs: rank 1 has waited 30 s for rank 0 (gpu2), which is at collective 4 of 5
nothing_completes: the workers hang: ranks 0 and 1 have waited 0 s for collective 5
worker_failed: rank 2 on gpu2 exited with code 1: bad data; no restart is left (3 used)
worker_failed: rank 2 on gpu2 exited with code 1: bad data
worker_failed: rank 2 on gpu2 exited with code 1: bad data; no restart, since it would end the same way
worker_failed: rank 2 on gpu2 exited with code 1: bad data; no restart, since no_restart_on has exit code 1
""",
    )
    assert (BAD.quote, BAD.nodes, BAD.ranks, BAD.data) == ("bad data", ("gpu2",), ((2, 2),), {"exit_code": 1})


def test_ends() -> None:
    found = [
        LOST,
        ReasonCode.NODE_LOST.reason("b", why=ReasonCode.CONNECTION_LOST.reason()),
        ReasonCode.NODE_LOST.reason("b", why=ReasonCode.AGENT_REPLACED.reason()),
        ReasonCode.NODE_LOST.reason("b", why=ReasonCode.AGENT_DIED.reason()),
        ReasonCode.NODE_LEFT.reason("b", why=ReasonCode.AGENT_LEFT.reason(quote="SIGTERM")),
        ReasonCode.NODE_LEAVING.reason("b", why=ReasonCode.NODE_DRAINED.reason()),
        ends.node_drained("g", "b"),
        ends.departure_with_failures(LOST),
    ]
    check(
        found,
        """
node_lost: b lost: no heartbeat for 5 s
node_lost: b lost: its connection was cut
node_lost: b lost: its agent was restarted
node_lost: b lost: its agent died, and its workers were stopped
node_left: b left: SIGTERM
node_leaving: b is leaving: drained
node_drained: b was drained; to readmit it: hetctl undrain g b
node_lost: b lost: no heartbeat for 5 s; failures elsewhere were a consequence
""",
    )


def test_events() -> None:
    found = [
        events.settings_changed("b", [SettingDifference("max_nodes", "2", "3")]),
        events.round_formed(3, 7, [("a", range(2)), ("b", range(2, 3))], 2, "lost"),
        ReasonCode.ROUND_JUDGED.reason(round=3, cause=ends.departure_with_failures(LOST)),
        events.restart_spent(BAD, 1, 3),
        events.restart_spent(BAD, 1, 2**40),
        events.group_succeeded(),
        events.group_succeeded(LOST),
        events.group_failed(BAD),
        events.group_failed(BAD, NodeList.of(["gpu2"])),
        events.node_joined("a", 2, "10.0.0.1"),
        events.node_joined("a", 1, "10.0.0.1", "no GPU"),
        events.node_refused("a", [SettingDifference("script", "train.py", "other.py")]),
    ]
    check(
        found,
        """
settings_changed: b changed the settings, since no other node was left: max_nodes 2 -> 3
round_formed: round 3 formed: world size 7, a ranks 0 and 1, b rank 2 and 2 more nodes
round_judged: round 3 ended because b lost: no heartbeat for 5 s; failures elsewhere were a consequence
restart_spent: restart 1 of 3: rank 2 on gpu2 exited with code 1: bad data
restart_spent: restart 1: rank 2 on gpu2 exited with code 1: bad data
group_succeeded: the job succeeded
group_succeeded: the job succeeded, but b lost: no heartbeat for 5 s
group_failed: the job failed: rank 2 on gpu2 exited with code 1: bad data
group_failed: the job failed: rank 2 on gpu2 exited with code 1: bad data; gpu2 gave up, and too few nodes are left
node_joined: a joined with 2 slots at 10.0.0.1
node_joined: a joined with 1 slot at 10.0.0.1, not ready yet: no GPU
node_refused: a is refused, since it gave script=other.py, and the group has script=train.py
""",
    )


# -- what is waited for ----------------------------------------------------------------------------------------

A, AB, NONE = ReadyCount(NodeList.of(["a"]), 2), ReadyCount(NodeList.of(["a", "b"]), 2, 7), ReadyCount(want=2)
EVEN = GroupSpec(min_world_size=8, max_world_size=16, world_size_multiple=4)


def lacks(*never: int, too_small: bool = False, spec: GroupSpec = EVEN) -> Reason:
    world = waiting.no_valid_world_size(spec, never, too_small=too_small)
    return waiting.too_few_nodes(A, 3 if too_small else 0, unit="slot", world=world)


def test_rounds_and_groups() -> None:
    many = [f"gpu{number}" for number in range(1, 8)]
    found = [
        waiting.round_about_to_end(4, ReasonCode.NODES_JOINED.reason("c"), ["b"], 530.0),
        waiting.round_running(4, 2, 9),
        waiting.round_running(4, 2, 9, LOST),
        waiting.too_few_nodes(A, 1),
        waiting.waits_for_replacement(waiting.too_few_nodes(NONE, 2), ["b"]),
        waiting.too_few_nodes(NONE, 2, since=320.0),
        lacks(too_small=True),
        lacks(too_small=True, spec=GroupSpec(min_world_size=8, max_world_size=8)),
        lacks(too_small=True, spec=GroupSpec(min_world_size=8)),
        lacks(3, 5),
        lacks(spec=replace(EVEN, unit="rack")),
        lacks(),
        waiting.no_reachable_master({"a": ["b"]}, "zone=x"),
        waiting.no_reachable_master({name: ["b"] for name in reversed(many)}, None),
        ReasonCode.RECONNECTING.reason("b", ready=AB),
        waiting.with_not_ready_nodes(waiting.too_few_nodes(A, 1), waiting.nodes_not_ready(B, "no GPU")),
        waiting.with_not_ready_nodes(waiting.too_few_nodes(NONE, 2), waiting.nodes_not_ready(BC, "no GPU")),
    ]
    check(
        found,
        """
stop_announced: round 4 is about to end (c joined); waiting for b to save and be ready to stop
round_running: round 4 runs on 2 nodes, world size 9
round_running: round 4 runs on 2 nodes, world size 9; so far b lost: no heartbeat for 5 s
too_few_nodes: 1 of 2 nodes ready (a); waiting for 1 more
too_few_nodes: no node is ready; waiting for 2 more in place of b
too_few_nodes: no agents connected; waiting for 2 more
too_few_slots: 1 of 2 nodes ready (a); the world size must be from 8 to 16 and a multiple of 4: waiting for 3 more slots
too_few_slots: 1 of 2 nodes ready (a); the world size must be 8: waiting for 3 more slots
too_few_slots: 1 of 2 nodes ready (a); the world size must be at least 8: waiting for 3 more slots
too_few_slots: 1 of 2 nodes ready (a); nodes with these slots (3, 5) can never form a world whose size is from 8 to \
16 and a multiple of 4: waiting for others
too_few_slots: 1 of 2 nodes ready (a); no set of whole units (rack) has a world size that is from 8 to 16 and a \
multiple of 4: waiting for others
too_few_slots: 1 of 2 nodes ready (a); no set of them has a world size that is from 8 to 16 and a multiple of 4: \
waiting for others
no_master: no node can be master: a cannot be reached from b; master is zone=x
no_master: no node can be master: gpu1 cannot be reached from b; gpu2 cannot be reached from b; gpu3 cannot be reached \
from b; gpu4 cannot be reached from b; gpu5 cannot be reached from b; and 2 more masters
reconnecting: 2 nodes with 7 slots ready (a, b); lost the connection to b: waiting to hear from there again
too_few_nodes: 1 of 2 nodes ready (a); waiting for 1 more; b is not ready: no GPU
too_few_nodes: no node is ready; waiting for 2 more; b, c are not ready; b: no GPU
""",
    )
    drained = waiting.waits_for_replacement(waiting.too_few_nodes(A, 1), ["b", "c"], ["c"])
    assert (drained.nodes, drained.data) == (("c",), {"missing": 1, "ready": 1, "drained": 1})


def test_nodes_in_no_round() -> None:
    found = [
        waiting.nodes_not_ready(B, "no GPU"),
        waiting.node_left_out(4, "b", ReasonCode.MAX_NODES.reason("b", max_nodes=3)),
    ]
    check(
        found,
        """
node_not_ready: no GPU
max_nodes: round 4 runs without b: max_nodes is 3
""",
    )
    assert [(one.nodes, one.round) for one in found] == [(("b",), None), (("b",), 4)]


# -- hangs, warnings, snapshots --------------------------------------------------------------------------------


def test_hangs() -> None:
    nobody = Hang(kind=StallKind.NOTHING_COMPLETES, waiting=RankList.of(range(3)), wait_for="collective 9")
    known = hangs.round_hangs(4, behind(3, "gpu2"), 460.0, until=510.0)
    check(
        [
            known,
            hangs.round_hangs(4, behind(3, "gpu2"), 460.0, known=False),
            hangs.stall_reported(4, HANG),
            hangs.stall_reported(4, HANG, goes_on=True),
        ],
        """
behind: round 4: ranks 0 and 1 wait for rank 3 (gpu2), which is at collective 17,203 of 17,204
behind: round 4: ranks 0 and 1 wait for rank 3 (gpu2), which is at collective 17,203 of 17,204; whether they still \
wait is no longer known
stalled: round 4 hangs: rank 1 has waited 30 s for rank 0 (gpu2), which is at collective 4 of 5
progress_resumed: round 4 goes on, after rank 1 has waited 30 s for rank 0 (gpu2), which is at collective 4 of 5
""",
    )
    assert (known.nodes, known.ranks, known.round) == (("gpu2",), ((3, 3),), 4)
    assert (known.since, known.until) == (460.0, 510.0)
    told = hangs.stall_reported(4, nobody)
    assert (told.nodes, told.ranks, told.data["kind"]) == ((), ((0, 2),), "nothing_completes")


def test_warnings_and_snapshots() -> None:
    stamp, earlier = SnapshotId(round=2, step=100), SnapshotId(round=9, step=1200, origin="x")
    found = [
        describe_version_differences("torch", {"2.13.0": ["b", "c"], "2.12.1": ["b"]}),
        describe_version_differences(
            "cuda", {f"12.{number}": ["b", "c"][: number - 3] for number in (4, 5, 6, 7, 8, 9)}
        ),
        ReasonCode.NO_LABEL.reason("b", "c", label="rack", setting="unit"),
        snapshots.began_from_snapshot(3, stamp, BC, 7, "step 107 is incomplete: shard missing of rank 1"),
        snapshots.began_from_snapshot(3, stamp, B, 0),
        snapshots.began_from_snapshot(3, None, NO_NODES, None),
        snapshots.began_from_snapshot(3, earlier, NO_NODES, 0, on_disk=True),
    ]
    check(
        found,
        """
versions_differ: b has torch 2.12.1, b, c have 2.13.0
versions_differ: b has CUDA 12.4, b, c have 12.5, b, c have 12.6, b, c have 12.7, 2 more versions on other nodes
no_label: unit needs the label rack, which is missing on: b, c
began_from_snapshot: round 3 begins from the snapshot of step 100 of round 2, which b, c have: 7 steps lost (step \
107 is incomplete: shard missing of rank 1)
began_from_snapshot: round 3 begins from the snapshot of step 100 of round 2, which b has: no step lost
began_from_snapshot: round 3 begins from nothing: an unknown number of steps lost
began_from_snapshot: round 3 begins from the snapshot of step 1200 of round 9 of an earlier job, which is on disk
""",
    )
