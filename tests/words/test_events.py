"""What people read of each event, and that every kind has words, is stored and read again."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest

from hetrdzv.protocol import codec
from hetrdzv.protocol.differences import Difference
from hetrdzv.protocol.directive import RootCauseReply
from hetrdzv.protocol.facts import events
from hetrdzv.protocol.facts.causes import (
    AgentDied,
    Announced,
    BadAddress,
    Cancelled,
    Cut,
    Drained,
    FailedWorker,
    Joined,
    JoinTimeout,
    MasterUnreachable,
    MemberDrained,
    MemberGone,
    MemberLeft,
    MemberLost,
    RestartAsked,
    Silent,
    Stopped,
    Superseded,
    Unreachable,
    WorkerFault,
    WorkersApart,
)
from hetrdzv.protocol.facts.events import CLASSES, Event, Facts
from hetrdzv.protocol.facts.parts import (
    Apart,
    CutOff,
    NoMaster,
    NotReady,
    NoWorld,
    Other,
    Quoted,
    Ready,
    WorldBounds,
)
from hetrdzv.protocol.pages import EventReply
from hetrdzv.protocol.texts.who import Nodes, Place
from hetrdzv.words.events import LONGEST, event_text
from tests.support.hangs import behind
from tests.words.test_snapshots import HAPPENED as SNAPSHOTS

FAILED = FailedWorker(node_id="gpu2", rank=2, local_rank=0, exit_code=1, said=Quoted("bad data"))
RAISED = FailedWorker(
    node_id="gpu2", rank=2, exit_code=1, said=Quoted("ValueError: x"), where=Quoted("train.py:7")
)
KILLED = FailedWorker(node_id="gpu2", rank=2, local_rank=0, signal="SIGKILL")
LOST = MemberLost(node_id="gpu3", why=Silent(for_s=5.0))
WAIT = behind(0, "gpu2", waiting=(1,), where="is at collective 4 of 5")
HANG = replace(WAIT, for_s=30.0)
WAITED = "rank 1 has waited 30 s for rank 0 (gpu2), which is at collective 4 of 5"
EIGHT = WorldBounds(least=8, most=8, multiple=1, min_nodes=1, max_nodes=None)
APART = Apart(met=0, world_size=4)
ALONE = (
    "ranks 0, 1, 2, 3 never met: each may have trained alone, unless they meet in another way than "
    "init_process_group with env:// or hvd.init()"
)
SHOWN: list[tuple[Facts, str]] = [
    (events.GroupCreated(group_id="bert"), "group 'bert' was created"),
    (events.JobBegan(group_id="bert", job=2), "job 2 of group 'bert' started"),
    (
        events.SettingsChanged(
            changes=(Difference("max_nodes", "2", "3"), Difference("unit", "none", "rack"))
        ),
        "gpu2 changed the settings, since no other node was left: max_nodes 2 -> 3, unit none -> rack",
    ),
    (
        events.RoundFormed(world_size=7, places=(Place("gpu1", 0, 2), Place("gpu2", 2, 1)), more=2),
        "round 3 formed: world size 7, gpu1 ranks 0 to 1, gpu2 rank 2 and 2 more nodes",
    ),
    (
        events.StartedUnbounded(nodes=1, restarts=True),
        "started with 1 node, since no --nnodes was given; nodes that join later restart the job",
    ),
    (
        events.StartedUnbounded(nodes=2, restarts=False),
        "started with 2 nodes, since no --nnodes was given; nodes that join later are kept as spares",
    ),
    (events.TrainingBegan(), "round 3 trains"),
    (events.RoundRunning(nodes=3, world_size=7), "round 3 runs on 3 nodes, world size 7"),
    (
        events.RoundEnded(cause=KILLED),
        "round 3 ended: rank 2 on gpu2 was killed by SIGKILL",
    ),
    (
        events.RoundJudged(cause=LOST),
        "round 3 ended because gpu3 lost: no heartbeat for 5 s; failures elsewhere were a consequence",
    ),
    (
        events.RestartSpent(restarts=1, budget=3, worker=FAILED),
        "restart 1 of 3: rank 2 on gpu2 exited with code 1",
    ),
    (events.RestartSpent(restarts=1, budget=3, worker=RAISED), "restart 1 of 3: rank 2 on gpu2 failed"),
    (events.RoundEnded(cause=RAISED), "round 3 ended: rank 2 on gpu2 failed"),
    (
        events.RestartSpent(restarts=1, budget=2**40, worker=FAILED),
        "restart 1: rank 2 on gpu2 exited with code 1",
    ),
    (events.GroupSucceeded(), "the job succeeded in round 3"),
    (events.GroupSucceeded(apart=APART), f"the job succeeded in round 3, but {ALONE}"),
    (
        events.GroupFailed(reason=WorkerFault(worker=FAILED, budget=3)),
        "the job failed: rank 2 on gpu2 exited with code 1; all 3 restarts are used up",
    ),
    (
        events.GroupFailed(reason=WorkerFault(worker=FAILED, budget=1)),
        "the job failed: rank 2 on gpu2 exited with code 1; the only restart is used up",
    ),
    (
        events.GroupFailed(reason=WorkerFault(worker=FAILED, budget=0)),
        "the job failed: rank 2 on gpu2 exited with code 1; max_restarts is 0",
    ),
    (
        events.GroupFailed(
            reason=WorkerFault(worker=FAILED),
            gave_up=Nodes.of(["gpu2"]),
            left=Ready(nodes=Nodes.of(["gpu1"]), want=2),
        ),
        "the job failed: rank 2 on gpu2 exited with code 1; gpu2 gave up, and 1 of 2 nodes is left",
    ),
    (events.GroupCancelled(), "the job was cancelled"),
    (events.GroupCancelled(hang=HANG), f"the job was cancelled; it hung: {WAITED}"),
    (events.GroupCancelled(by="an admin at 10.0.0.9"), "the job was cancelled by an admin at 10.0.0.9"),
    (events.NodeJoined(slots=1, address="10.0.0.2"), "gpu2 joined with 1 slot at 10.0.0.2"),
    (
        events.NodeJoined(slots=8, address="10.0.0.2", not_ready=Quoted("Xid 79")),
        "gpu2 joined with 8 slots at 10.0.0.2, not ready yet: Xid 79",
    ),
    (events.NodeReturned(), "gpu2 is back"),
    (events.NodeNotReady(why=Quoted("Xid 79")), "gpu2 is not ready: Xid 79"),
    (events.NodeReady(), "gpu2 is ready"),
    (
        events.NodeRefused(differences=(Difference("script", "train.py", "other.py"),)),
        "gpu2 is refused, since it gave script=other.py, and the group has script=train.py",
    ),
    (
        events.NodeRejected(why=BadAddress(group_id="bert", node_id="gpu2", address="127.0.0.1")),
        (
            "node 'gpu2' offers address 127.0.0.1, but group 'bert' has nodes on other hosts: start hetagent with "
            "--local-addr or --interface"
        ),
    ),
    (
        events.NodeLeftOut(master="gpu1"),
        "gpu2 is left out: it cannot reach gpu1, and no node can be reached by all",
    ),
    (events.NodeLeaving(why=Announced(text=Quoted("SIGTERM"))), "gpu2 is leaving: SIGTERM"),
    (events.NodeLeaving(why=Announced()), "gpu2 is leaving: its agent is leaving"),
    (
        events.NodeLost(why=AgentDied()),
        "gpu2 lost: its agent died, and its workers were stopped",
    ),
    (events.NodeLeft(why=Announced()), "gpu2 left: its agent left"),
    (events.NodeLeft(why=Drained()), "gpu2 left: drained"),
    (events.NodeLost(why=Cut()), "gpu2 lost: its connection was cut"),
    (events.NodeLost(why=Superseded()), "gpu2 lost: its agent was restarted"),
    (events.NodeDrained(), "gpu2 was drained"),
    (events.NodeUndrained(), "gpu2 may join again"),
    (
        events.NodeUsedLast(failures=3),
        "workers on gpu2 caused the last 3 failures: other nodes are preferred to it",
    ),
    (events.NodeSucceeded(), "all workers of gpu2 succeeded"),
    (events.WorkerFailed(worker=FAILED), "rank 2 on gpu2 exited with code 1: bad data"),
    (events.WorkerFailed(worker=RAISED), "ValueError: x (train.py:7, rank 2 on gpu2)"),
    (
        events.WorkerFailed(worker=FailedWorker(node_id="gpu2", exit_code=3)),
        "the program of gpu2 exited with code 3",
    ),
    (
        events.WorkerFailed(worker=FailedWorker(node_id="gpu2", said=Quoted("no such file"))),
        "gpu2 could not start its workers: no such file",
    ),
    (events.NeverMet(apart=APART), ALONE),
    (
        events.NeverMet(apart=Apart(met=3, world_size=8)),
        (
            "only 3 of 8 workers met: the others may have trained alone, unless they meet in another way than "
            "init_process_group with env:// or hvd.init()"
        ),
    ),
    *SNAPSHOTS,
    (
        events.Stalled(hang=replace(WAIT, for_s=15.0)),
        "round 3 hangs: rank 1 has waited 15 s for rank 0 (gpu2), which is at collective 4 of 5",
    ),
    (
        events.GoesOn(hang=replace(WAIT, for_s=40.0)),
        "round 3 goes on, after rank 1 has waited 40 s for rank 0 (gpu2), which is at collective 4 of 5",
    ),
    (events.DaemonStarted(program="orted"), "gpu2, the master, has the others run orted"),
    (
        events.StopAnnounced(cause=RestartAsked(), notice_s=30.0),
        "round 3 is about to end (a restart was requested): its workers have 30 s to save",
    ),
    (events.ReadyToStop(took_s=2.0), "all nodes are ready to stop, 2.0 s after they were told"),
    (
        events.NoticeExpired(late=Nodes.of(["gpu2"]), notice_s=30.0),
        "gpu2 was not ready to stop within 30 s",
    ),
    (
        events.NoticeExpired(late=Nodes.of(["gpu2", "gpu10"]), notice_s=30.0),
        "gpu2, gpu10 were not ready to stop within 30 s",
    ),
    (Other(kind="node_painted"), "node painted"),
]

ENDS: list[tuple[Any, str]] = [
    (LOST, "gpu3 lost: no heartbeat for 5 s"),
    (MemberLeft(node_id="gpu3", why=Announced(text=Quoted("SIGTERM"))), "gpu3 left: SIGTERM"),
    (MemberLeft(node_id="gpu3", why=Announced(), announced=True), "gpu3 is leaving: its agent is leaving"),
    (MemberLeft(node_id="gpu3", why=Stopped()), "gpu3 stopped its workers on its own"),
    (
        MemberLeft(
            node_id="gpu3", why=Stopped(why=Quoted("goes on, although its workers here have stopped"))
        ),
        "gpu3 left the round, which goes on, although its workers here have stopped",
    ),
    (MemberDrained(node_id="gpu3"), "gpu3 is leaving: drained"),
    (Joined(node_id="gpu3", nodes=Nodes.of(["gpu3", "gpu4"])), "gpu3, gpu4 joined"),
    (RestartAsked(), "a restart was requested"),
    (RestartAsked(hang=HANG), f"a restart was requested; it hung: {WAITED}"),
    (Cancelled(hang=HANG), f"the job was cancelled; it hung: {WAITED}"),
    (
        MasterUnreachable(node_id="gpu3", master="gpu1", error=Quoted("timed out")),
        "gpu3 cannot reach the master gpu1: timed out",
    ),
    (Cancelled(by="an admin"), "the job was cancelled by an admin"),
    (FailedWorker(node_id="gpu2", rank=2, local_rank=0, hang=HANG), f"a worker hangs: {WAITED}"),
    (FailedWorker(node_id=None, hang=HANG), f"the workers hang: {WAITED}"),
    (Other(kind="sold"), "sold"),
]

FAILURES: list[tuple[Any, str]] = [
    (
        WorkerFault(worker=FAILED, hopeless="permanent"),
        "rank 2 on gpu2 exited with code 1; no restart, since it would end the same way",
    ),
    (
        WorkerFault(worker=FAILED, hopeless="no_restart_on"),
        "rank 2 on gpu2 exited with code 1; no restart, since no_restart_on has exit code 1",
    ),
    (WorkersApart(apart=APART), ALONE),
    (
        MemberGone(kind="node_lost", cause=LOST, consequences=True),
        "gpu3 lost: no heartbeat for 5 s; failures elsewhere were a consequence",
    ),
    (
        Unreachable(
            no_master=NoMaster(masters=(CutOff(master="gpu1", nodes=Nodes.of(["gpu2"])),), more=1, rule="a=b")
        ),
        (
            "no node can be master: gpu1 cannot be reached from gpu2; and 1 more master; master is a=b. Check the "
            "firewall, --port-range, --interface and --local-addr"
        ),
    ),
    (
        JoinTimeout(within_s=60.0, ready=Ready(nodes=Nodes.of(["gpu1"]), want=2)),
        "not enough nodes joined within 60 s: 1 of 2 nodes ready (gpu1)",
    ),
    (
        JoinTimeout(
            within_s=60.0,
            ready=Ready(nodes=Nodes(), want=1, slots=0),
            world=NoWorld(bounds=EIGHT, too_small=True),
            not_ready=NotReady(nodes=Nodes.of(["gpu2", "gpu3"]), why=Quoted("Xid 79")),
        ),
        (
            "not enough nodes joined within 60 s: 0 nodes with 0 slots ready; the world size must be 8; gpu2, gpu3 are "
            "not ready; gpu2: Xid 79"
        ),
    ),
    (
        JoinTimeout(within_s=60.0, ready=Ready(nodes=Nodes.of(["gpu1", "gpu2"]), want=2), rule="public=yes"),
        (
            "no node that may be master joined within 60 s: gpu1, gpu2 are ready, but none of them may be master, "
            "since master is public=yes"
        ),
    ),
]


def event(facts: Facts) -> Event:
    return Event(facts=facts, node_id="gpu2", round=3)


@pytest.mark.parametrize(("facts", "text"), SHOWN, ids=lambda one: getattr(one, "kind", ""))
def test_what_is_read_of_an_event(facts: Facts, text: str) -> None:
    assert event_text(event(facts)) == text


@pytest.mark.parametrize(("cause", "text"), ENDS, ids=lambda one: getattr(one, "kind", ""))
def test_what_is_read_of_the_end_of_a_round(cause: Any, text: str) -> None:
    assert event_text(event(events.RoundEnded(cause=cause))) == f"round 3 ended: {text}"


@pytest.mark.parametrize(("reason", "text"), FAILURES, ids=lambda one: getattr(one, "kind", ""))
def test_what_is_read_of_a_failed_job(reason: Any, text: str) -> None:
    assert event_text(event(events.GroupFailed(reason=reason))) == f"the job failed: {text}"


def test_every_kind_is_among_these() -> None:
    assert {type(facts) for facts, _ in SHOWN} == set(CLASSES)
    assert {type(cause) for cause, _ in ENDS} == set(classes_in("cause", events.RoundEnded))
    assert {type(reason) for reason, _ in FAILURES} == {*classes_in("reason", events.GroupFailed)} - {Other}


def classes_in(name: str, of: Any) -> Iterator[type]:
    """The classes that a field may have."""
    yield from get_args(get_args(of.__dataclass_fields__[name].type)[0])


@pytest.mark.parametrize("facts", [facts for facts, _ in SHOWN if not isinstance(facts, Other)])
def test_every_kind_is_stored_and_read_again(facts: Facts) -> None:
    there = event(facts)
    assert codec.read(Event, codec.write(there), unknown="ignore") == there


@pytest.mark.parametrize(("cause", "text"), ENDS)
def test_so_is_every_cause(cause: Any, text: str) -> None:
    there = event(events.RoundEnded(cause=cause))
    assert codec.read(Event, codec.write(there), unknown="ignore") == there


def test_what_only_a_newer_server_knows_is_other() -> None:
    body: dict[str, Any] = {"facts": {"kind": "node_painted", "colour": "red"}, "node_id": "gpu2"}
    assert codec.read(Event, json.dumps(body), unknown="ignore").facts == Other(kind="node_painted")
    body["facts"] = {"kind": "round_ended", "cause": {"kind": "sold", "price": 3}}
    found = codec.read(Event, json.dumps(body), unknown="ignore").facts
    assert found == events.RoundEnded(cause=Other(kind="sold"))


_HANG = {"kind": "failed", "hang": {"for_s": 9, "kind": "asleep", "wait_for": "sheep"}}


@pytest.mark.parametrize(
    "facts",
    [
        {"kind": "round_ended", "cause": _HANG},
        {"kind": "stalled", "hang": {"kind": "asleep", "wait_for": "sheep"}},
        {"kind": "group_failed", "reason": {"kind": "hang", "worker": _HANG}},
        {"kind": "restart_spent"},
    ],
)
def test_where_it_is_only_shown_that_may_be_anywhere_in_it(facts: dict[str, Any]) -> None:
    body = {"number": 1, "at": "now", "kind": facts["kind"], "text": "as the server says", "facts": facts}
    assert codec.read(EventReply, json.dumps(body), unknown="ignore").facts == Other(kind=facts["kind"])


def test_an_agent_understands_why_its_job_failed_though_only_a_newer_server_knows_the_hang() -> None:
    body = {"kind": "hang", "message": "m", "reason": {"kind": "hang", "worker": _HANG}}
    assert codec.read(RootCauseReply, json.dumps(body), unknown="ignore").reason == Other(kind="hang")


def test_a_kind_that_is_known_must_have_its_facts() -> None:
    with pytest.raises(codec.Malformed, match="slots"):
        codec.read(Event, '{"facts": {"kind": "node_joined", "address": "a"}}', unknown="ignore")


def test_a_text_is_no_longer_than_anybody_reads() -> None:
    text = event_text(event(events.NodeLost(why=Announced(text=Quoted("x" * 3000)))))
    assert (len(text), text[-1]) == (LONGEST, "…")
