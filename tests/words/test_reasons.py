"""The sentences for reasons: each kind once, as people read it."""

import pytest

from hetrdzv.protocol import codec
from hetrdzv.protocol.facts import parts, reasons
from hetrdzv.protocol.facts.causes import (
    Announced,
    BadAddress,
    Cut,
    FailedWorker,
    Joined,
    MemberLost,
    Silent,
    WorkerFault,
)
from hetrdzv.protocol.facts.parts import Quoted, Ready
from hetrdzv.protocol.facts.reasons import Reason, WhyLeftOut, timeless
from hetrdzv.protocol.texts.times import Clock
from hetrdzv.protocol.texts.who import Nodes
from hetrdzv.words.reasons import left_out, time_left, told, why
from tests.support.hangs import behind
from tests.words.unions import classes

NOW = 500.0
A = Ready(nodes=Nodes.of(["a"]), want=2)
NOBODY = Ready(want=2)
MANY = Nodes.of(f"gpu{number}" for number in range(1, 8))
B = Nodes.of(["b"])
EVEN = parts.WorldBounds(least=8, most=16, multiple=4, min_nodes=1, max_nodes=None)
ENDED = reasons.Ended(round=3, cause=MemberLost(node_id="b", why=Silent(for_s=5.0)))
TOO_FEW = reasons.TooFew(ready=A, missing=1, until=560.0)
NEVER = "each may have trained alone, unless they meet in another way than init_process_group with env:// or hvd.init()"


def waits(what: reasons.WaitsFor, **more: object) -> reasons.Waits:
    return reasons.Waits(what=what, **more)  # type: ignore[arg-type]


def lacks(**more: object) -> reasons.TooFew:
    world = parts.NoWorld(bounds=EVEN, **more)  # type: ignore[arg-type]
    return reasons.TooFew(ready=A, missing=3 if world.too_small else 0, unit="slot", world=world)


def without_b(why: WhyLeftOut) -> reasons.LeftOut:
    return reasons.LeftOut(round=4, node_id="b", why=why)


SENTENCES: list[tuple[Reason, str]] = [
    (reasons.Succeeded(), "the job succeeded"),
    (
        reasons.Succeeded(apart=parts.Apart(met=1, world_size=3)),
        (
            "the job succeeded, but only 1 of 3 workers met: the others may have trained alone, unless they meet in "
            "another way than init_process_group with env:// or hvd.init()"
        ),
    ),
    (reasons.Cancelled(), "the job was cancelled"),
    (reasons.Cancelled(by="an admin"), "the job was cancelled by an admin"),
    (reasons.Failed(), "the job failed: unknown cause"),
    (
        reasons.Failed(cause=WorkerFault(worker=FailedWorker(node_id="b", exit_code=2))),
        "the program of b exited with code 2",
    ),
    (
        reasons.Starting(round=4, nodes=MANY),
        "round 4 is starting: waiting for gpu1, gpu2, gpu3, gpu4, gpu5 and 2 more to start their workers",
    ),
    (
        reasons.AboutToEnd(round=4, cause=Joined(node_id="c", nodes=Nodes.of(["c"])), nodes=B, until=530.0),
        "round 4 is about to end (c joined); waiting for b to save and be ready to stop (at most 30 s more)",
    ),
    (
        reasons.Runs(round=4, nodes=2, world_size=9, apart=parts.Apart(met=0, world_size=9)),
        f"round 4 runs on 2 nodes, world size 9; so far ranks 0 to 8 never met: {NEVER}",
    ),
    (
        reasons.Stalls(round=4, hang=behind(2, "b"), since=460.0, ends_at=510.0),
        (
            "round 4: ranks 0 and 1 have waited 40 s for rank 2 (b), which is at collective 17,203 of 17,204; "
            "the round ends for it in 10 s"
        ),
    ),
    (
        reasons.Stalls(
            round=4, hang=behind(2, "b", where="is at collective 17,203"), since=460.0, known=False
        ),
        (
            "round 4: ranks 0 and 1 have waited 40 s for rank 2 (b), which is at collective 17,203; "
            "whether they still wait is no longer known"
        ),
    ),
    (
        waits(reasons.ToStop(nodes=B, checked=True, until=535.0), ended=ENDED),
        (
            "b has to stop its workers and be ready again (at most 35 s more); "
            "round 3 ended (b lost: no heartbeat for 5 s)"
        ),
    ),
    (
        waits(reasons.TooFew(ready=NOBODY, missing=1, in_place_of=B, since=320.0), ended=ENDED),
        (
            "no node is here: the last one went 3 min ago; waiting for 1 more in place of b; "
            "round 3 ended (b lost: no heartbeat for 5 s)"
        ),
    ),
    (
        waits(TOO_FEW, not_ready=parts.NotReady(nodes=B, why=Quoted("no GPU"))),
        "1 of 2 nodes ready (a); waiting for 1 more (at most 1 min 0 s more); b is not ready: no GPU",
    ),
    (
        waits(
            reasons.TooFew(ready=NOBODY, missing=2, in_place_of=B),
            not_ready=parts.NotReady(nodes=MANY, why=Quoted("no GPU")),
        ),
        (
            "no node is ready; waiting for 2 more in place of b; gpu1, gpu2, gpu3, gpu4, gpu5 and 2 more are not "
            "ready; gpu1: no GPU"
        ),
    ),
    (
        waits(lacks(too_small=True)),
        "1 of 2 nodes ready (a); the world size must be from 8 to 16 and a multiple of 4: waiting for 3 more slots",
    ),
    (
        waits(lacks(never=(3, 5))),
        (
            "1 of 2 nodes ready (a); nodes with 3, 5 slots can never form a world whose size is from 8 to 16 and a "
            "multiple of 4: waiting for others"
        ),
    ),
    (
        waits(lacks(never=(1, 2, 3, 5, 7), never_more=2)),
        (
            "1 of 2 nodes ready (a); nodes with 1, 2, 3, 5, 7 slots or 2 other numbers can never form a world whose "
            "size is from 8 to 16 and a multiple of 4: waiting for others"
        ),
    ),
    (
        waits(lacks(unit="rack")),
        (
            "1 of 2 nodes ready (a); no set of whole units (rack) has a world size that is from 8 to 16 and a multiple "
            "of 4: waiting for others"
        ),
    ),
    (
        waits(lacks()),
        (
            "1 of 2 nodes ready (a); no set of them has a world size that is from 8 to 16 and a multiple of 4: "
            "waiting for others"
        ),
    ),
    (
        waits(reasons.MayNotBeMaster(ready=A, rule="zone=x", until=560.0)),
        (
            "1 of 2 nodes ready (a), but it may not be master, since master is zone=x; waiting for one that may "
            "(at most 1 min 0 s more)"
        ),
    ),
    (
        waits(reasons.NoCommand(group_id="g", nodes=Nodes.of(["a", "b"]))),
        "a, b wait for a command: hetctl create g -- train.py",
    ),
    (
        waits(
            reasons.Unreachable(
                ready=A,
                no_master=parts.NoMaster(
                    masters=(parts.CutOff(master="a", nodes=B),), more=2, rule="label=x"
                ),
            )
        ),
        (
            "1 of 2 nodes ready (a), but none can be master (a cannot be reached from b; and 2 more masters; master is "
            "label=x); waiting for more"
        ),
    ),
    (
        waits(reasons.ToHear(ready=A, nodes=B)),
        "1 of 2 nodes ready (a); lost the connection to b, waiting to hear from it again",
    ),
    (
        waits(reasons.Resting(ready=A, restart=2, of=3, quick=2, until=504.0)),
        "1 of 2 nodes ready (a); restart 2 of 3 waits 4 s more, since 2 came in quick succession",
    ),
    (
        waits(
            reasons.LastCall(
                ready=Ready(nodes=Nodes.of(["a", "b"]), want=2, slots=7), or_nodes=4, or_slots=8, until=510.0
            )
        ),
        (
            "2 nodes with 7 slots ready (a, b); last call: starts in 10 s, or as soon as 4 are ready, or as soon as "
            "nodes with 8 slots are"
        ),
    ),
    (
        waits(reasons.LastCall(ready=Ready(nodes=Nodes.of(["a", "b"]), want=1), until=520.0)),
        "2 nodes ready (a, b); last call: starts in 20 s",
    ),
    (
        waits(reasons.LastCall(ready=A, replacement=True, until=520.0)),
        "1 of 2 nodes ready (a); waiting for a replacement: starts in 20 s",
    ),
    (
        reasons.NoCommand(group_id="g", nodes=B),
        (
            "b was started without a script, and group 'g' has no command yet: give hetagent one, or: "
            "hetctl create g -- train.py"
        ),
    ),
    (
        without_b(parts.NotReady(nodes=B, why=Quoted("no GPU"))),
        "round 4 runs without b, which is not ready: no GPU",
    ),
    (
        without_b(reasons.Joins(until=510.0)),
        "round 4 runs, and will restart to include b (at most 10 s more)",
    ),
    (
        without_b(reasons.Spare(kind="on_join")),
        "round 4 runs without b, which is kept as a spare (on_join is spare)",
    ),
    (without_b(reasons.Spare(kind="not_larger")), "round 4 runs without b, which is kept as a spare"),
    (
        without_b(reasons.Misfit(slots=3, world_size=11, bounds=EVEN)),
        (
            "round 4 runs without b, which is kept as a spare: with its 3 slots the world size would be 11, not a "
            "multiple of 4"
        ),
    ),
    (
        reasons.Rejected(why=BadAddress(group_id="g", node_id="b", address="127.0.0.1")),
        (
            "node 'b' offers address 127.0.0.1, but group 'g' has nodes on other hosts: start hetagent with "
            "--local-addr or --interface"
        ),
    ),
    (reasons.EarlierJob(outcome="failed"), "the job that this node was in failed"),
    (
        reasons.CameLate(group_id="g", outcome="cancelled", by="an admin", at="noon"),
        (
            "the last job of group 'g' was cancelled by an admin at noon, before this node joined; to start another: "
            "hetctl restart g, or hetctl delete g if its settings are to differ; or give the agents another --group"
        ),
    ),
    (reasons.Gone(kind="left", node_id="b", why=Announced(text=Quoted("SIGTERM"))), "b has left: SIGTERM"),
    (
        reasons.Gone(kind="lost", node_id="b", why=Cut()),
        "the server considers b lost: its connection was cut",
    ),
    (reasons.Drained(group_id="g", node_id="b"), "b was drained; to readmit it: hetctl undrain g b"),
    (ENDED, "b lost: no heartbeat for 5 s"),
    (reasons.Formed(round=4), "round 4 formed"),
    (reasons.Formed(kind="over", round=4), "round 4 is over"),
    (reasons.RunsDaemon(master="a", program="orted"), "a, the master, has this node run orted"),
]


@pytest.mark.parametrize(("reason", "sentence"), SENTENCES, ids=lambda value: getattr(value, "kind", ""))
def test_sentence(reason: Reason, sentence: str) -> None:
    assert why(reason, Clock(NOW)) == sentence


def test_every_kind_has_a_sentence() -> None:
    shown = {type(reason) for reason, _ in SENTENCES}
    inside = {type(one.what) for one, _ in SENTENCES if isinstance(one, reasons.Waits)}
    assert classes(Reason) - shown == {parts.Other}
    assert classes(reasons.WaitsFor) == inside


CLAUSES: list[tuple[WhyLeftOut, str]] = [
    (
        reasons.NoCommand(group_id="g", nodes=B),
        "it was started without a script, and the group has no command yet",
    ),
    (parts.NotReady(nodes=B, why=Quoted("no GPU")), "it is not ready: no GPU"),
    (reasons.Joins(until=510.0), "the round is going to restart to include it"),
    (reasons.Spare(kind="others_succeeded"), "workers on other nodes have already succeeded"),
    (reasons.Full(max_nodes=3), "max_nodes is 3"),
    (
        reasons.OutOfReach(master="a", address="10.0.0.1"),
        "it could not reach a at 10.0.0.1: check the firewall, --port-range and --interface, then restart its agent",
    ),
    (
        reasons.OutOfReach(master="a", address="127.0.0.1", loopback=True),
        (
            "a, the master, offers address 127.0.0.1, which no other host can reach: start hetagent there with "
            "--local-addr or --interface"
        ),
    ),
    (
        reasons.Misfit(nodes=2, unit="rack", slots=12, world_size=20, bounds=EVEN),
        "with the 2 nodes of its rack and their 12 slots the world size would be 20, above max_world_size, which is 16",
    ),
    (
        reasons.UsedLast(group_id="g", node_id="b", failures=3),
        (
            "its workers caused the last 3 failures of its rounds, so other nodes are preferred; to change that: "
            "hetctl undrain g b"
        ),
    ),
]


@pytest.mark.parametrize(("reason", "clause"), CLAUSES, ids=lambda value: getattr(value, "kind", ""))
def test_why_a_node_is_left_out(reason: WhyLeftOut, clause: str) -> None:
    assert left_out(reason, Clock(NOW)) == clause


def test_every_reason_for_leaving_out_has_a_clause() -> None:
    assert {type(reason) for reason, _ in CLAUSES} == classes(WhyLeftOut)


@pytest.mark.parametrize("reason", [reason for reason, _ in SENTENCES], ids=lambda value: value.kind)
def test_a_reason_survives_the_way_to_a_peer(reason: Reason) -> None:
    assert codec.read(Reason, codec.write(reason, Reason), unknown="ignore") == reason  # type: ignore[arg-type]


def test_an_unknown_reason_is_told_in_the_servers_words() -> None:
    newer = codec.read(Reason, b'{"kind": "eclipse", "until": 7}', unknown="ignore")  # type: ignore[arg-type]
    assert newer == parts.Other(kind="eclipse")
    assert told(newer, "the moon is in the way", Clock(NOW)) == "the moon is in the way"
    assert told(None, "the moon is in the way", Clock(NOW)) == "the moon is in the way"
    assert told(reasons.Formed(round=1), "?", Clock(NOW)) == "round 1 formed"


def test_a_known_reason_with_what_only_newer_servers_know_is_told_in_their_words() -> None:
    data = b'{"kind": "waits", "what": {"kind": "to_dream", "of": "sheep"}}'
    assert codec.read(Reason, data, unknown="ignore") == parts.Other(kind="waits")  # type: ignore[arg-type]
    data = b'{"kind": "formed", "round": 3, "by": "the moon"}'
    assert codec.read(Reason, data, unknown="ignore") == reasons.Formed(round=3)  # type: ignore[arg-type]


def test_so_is_one_whose_cause_only_newer_servers_know() -> None:
    data = b'{"kind": "ended", "round": 3, "cause": {"kind": "moonrise"}}'
    reason = codec.read(Reason, data, unknown="ignore")  # type: ignore[arg-type]
    assert told(reason, "the moon rose over gpu3", Clock(NOW)) == "the moon rose over gpu3"
    assert told(ENDED, "?", Clock(NOW)) == why(ENDED, Clock(NOW))


def test_reasons_that_differ_in_their_moments_only_say_the_same() -> None:
    later = waits(reasons.TooFew(ready=A, missing=1, until=570.0))
    assert timeless(waits(TOO_FEW)) == timeless(later)
    assert timeless(later) != timeless(waits(reasons.TooFew(ready=A, missing=2, until=570.0)))


def test_the_time_left_of_a_wait_is_as_in_its_sentence() -> None:
    lasting = {sentence: time_left(reason, Clock(NOW)) for reason, sentence in SENTENCES}
    assert [sentence for sentence, left in lasting.items() if left not in sentence] == []
    assert time_left(waits(TOO_FEW, ended=ENDED), Clock(NOW)) == "1 min 0 s"
    assert time_left(without_b(reasons.Joins(until=510.0)), Clock(NOW)) == "10 s"
    assert time_left(waits(reasons.TooFew(ready=A, missing=1), ended=ENDED), Clock(NOW)) == ""
    assert time_left(None, Clock(NOW)) == ""
