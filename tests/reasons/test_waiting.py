"""What groups and nodes wait for: each message once."""

from dataclasses import replace

import pytest

from hetrdzv.protocol.reasons import ends, waiting
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.reasons.waiting import Ready
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.texts.who import Nodes

A, AB = Ready(Nodes.of(["a"]), 2), Ready(Nodes.of(["a", "b"]), 2, 7)
NOBODY = Ready(want=2)
MANY = [f"gpu{number}" for number in range(1, 8)]
EVEN = GroupSpec(min_world_size=8, max_world_size=16, world_size_multiple=4)
ALLOWED = "from 8 to 16 and a multiple of 4"


def lacks(*never: int, too_small: bool = False, unit: str | None = None) -> Reason:
    world = waiting.no_world(replace(EVEN, unit=unit), never, too_small=too_small)
    return waiting.too_few(A, 3 if too_small else 0, unit="slot", world=world)


@pytest.mark.parametrize(
    ("found", "code", "message"),
    [
        (
            waiting.round_starting(4, MANY),
            "round_starting",
            "round 4 is starting: waiting for gpu1, gpu2, gpu3, gpu4, gpu5 and 2 more to start their workers",
        ),
        (
            waiting.about_to_end(4, ends.nodes_joined(["c"]), ["b"], 530.0),
            "stop_announced",
            "round 4 is about to end (c joined); waiting for b to save and be ready to stop",
        ),
        (waiting.round_running(4, 2, 9), "round_running", "round 4 runs on 2 nodes, world size 9"),
        (
            waiting.round_running(4, 2, 9, ends.never_met(1, 9)),
            "round_running",
            f"round 4 runs on 2 nodes, world size 9; so far {ends.never_met(1, 9)}",
        ),
        (waiting.stopping(["b"], checked=False), "stopping", "b has to stop its workers"),
        (
            waiting.stopping(["a", "b"], checked=True),
            "stopping",
            "a, b have to stop their workers and be ready again",
        ),
        (
            waiting.no_allowed_master(A, "zone=x"),
            "no_allowed_master",
            "1 of 2 nodes ready (a), but it may not be master, since master is zone=x; waiting for one that may",
        ),
        (
            waiting.no_command("g", ["a", "b"]),
            "no_command",
            (
                "a, b were started without a script, and group 'g' has no command yet: give hetagent one, or: hetctl "
                "create g -- train.py"
            ),
        ),
        (waiting.too_few(A, 1), "too_few_nodes", "1 of 2 nodes ready (a); waiting for 1 more"),
        (
            waiting.too_few(NOBODY, 2, gone=["b"]),
            "too_few_nodes",
            "no node is ready; waiting for 2 more in place of b",
        ),
        (
            waiting.too_few(NOBODY, 2, since=320.0),
            "too_few_nodes",
            "no agents connected; waiting for 2 more",
        ),
        (
            lacks(too_small=True),
            "too_few_slots",
            f"1 of 2 nodes ready (a); the world size must be {ALLOWED}: waiting for 3 more slots",
        ),
        (
            lacks(3, 5),
            "too_few_slots",
            (
                f"1 of 2 nodes ready (a); nodes with 3, 5 slots can never form a world whose size is {ALLOWED}: "
                "waiting for others"
            ),
        ),
        (
            lacks(1, 2, 3, 5, 7, 9, 11),
            "too_few_slots",
            (
                "1 of 2 nodes ready (a); nodes with 1, 2, 3, 5, 7 slots or 2 other numbers can never form a world "
                f"whose size is {ALLOWED}: waiting for others"
            ),
        ),
        (
            lacks(unit="rack"),
            "too_few_slots",
            (
                f"1 of 2 nodes ready (a); no set of whole units (rack) has a world size that is {ALLOWED}: waiting for "
                "others"
            ),
        ),
        (
            lacks(),
            "too_few_slots",
            f"1 of 2 nodes ready (a); no set of them has a world size that is {ALLOWED}: waiting for others",
        ),
        (
            waiting.no_reachable_master(A, {"a": ["b"]}, "zone=x"),
            "no_master",
            (
                "1 of 2 nodes ready (a), but none can be master (a cannot be reached from b; "
                "master is zone=x); waiting for more"
            ),
        ),
        (
            waiting.no_reachable_master(A, {name: ["b"] for name in reversed(MANY)}),
            "no_master",
            (
                "1 of 2 nodes ready (a), but none can be master ("
                + "".join(f"gpu{number} cannot be reached from b; " for number in range(1, 6))
                + "and 2 more masters); waiting for more"
            ),
        ),
        (
            waiting.reconnecting(A, ["b"]),
            "reconnecting",
            "1 of 2 nodes ready (a); lost the connection to b, waiting to hear from it again",
        ),
        (
            waiting.restart_backoff(A, 2, 3, 2, 504.0),
            "restart_backoff",
            "1 of 2 nodes ready (a); restart 2 of 3 waits, since 2 came in quick succession",
        ),
        (
            waiting.last_call(AB, 510.0, or_nodes=4, or_slots=8),
            "last_call",
            (
                "2 nodes with 7 slots ready (a, b); last call for others, or until 4 are ready, or until nodes with 8 "
                "slots are"
            ),
        ),
        (
            waiting.last_call(A, 510.0, replacement=True),
            "last_call",
            "1 of 2 nodes ready (a); waiting for a replacement",
        ),
        (
            waiting.also(waiting.too_few(A, 1), waiting.not_ready(Nodes.of(["b"]), "no GPU"), None),
            "too_few_nodes",
            "1 of 2 nodes ready (a); waiting for 1 more; b is not ready: no GPU",
        ),
        (
            waiting.also(waiting.too_few(NOBODY, 2), waiting.not_ready(Nodes.of(["b", "c"]), "no GPU"), None),
            "too_few_nodes",
            "no node is ready; waiting for 2 more; b, c are not ready; b: no GPU",
        ),
        (
            waiting.earlier_job("cancelled"),
            "earlier_job",
            "the job that this node was in was cancelled",
        ),
        (
            waiting.came_late("g", "cancelled", "an admin"),
            "came_late",
            (
                "the last job of group 'g' was cancelled by an admin, before this node joined; to start "
                "another: hetctl restart g, or hetctl delete g if its settings are to differ; or give the "
                "agents another --group"
            ),
        ),
        (
            waiting.is_drained("g", "b"),
            "node_drained",
            "b was drained; to readmit it: hetctl undrain g b",
        ),
        (waiting.round_over(3), "round_ended", "round 3 is over"),
        (waiting.round_formed(3), "round_formed", "round 3 formed"),
        (waiting.quarantined("it is odd"), "quarantined", "hetserver cannot serve it: it is odd"),
    ],
)
def test_groups(found: Reason, code: str, message: str) -> None:
    assert (found.code, found.message) == (code, message)


@pytest.mark.parametrize(
    ("why", "code", "clause", "sentence"),
    [
        (
            waiting.not_ready(Nodes.of(["b"]), "no GPU"),
            "node_not_ready",
            "no GPU",
            "round 4 runs without b, which is not ready: no GPU",
        ),
        (
            waiting.joins_next_round("b", 510.0),
            "joins_next_round",
            "the round is going to restart to include it",
            "round 4 runs, and will restart to include b",
        ),
        (waiting.on_join_spare("b"), "on_join_spare", "on_join is spare", None),
        (
            waiting.others_succeeded("b"),
            "others_succeeded",
            "workers on other nodes have already succeeded",
            None,
        ),
        (
            waiting.world_not_larger("b"),
            "world_not_larger",
            "the world would not be larger with it",
            None,
        ),
        (waiting.max_nodes("b", 3), "max_nodes", "max_nodes is 3", None),
        (
            waiting.out_of_reach("b", "a", "10.0.0.1"),
            "out_of_reach",
            (
                "it could not reach a at 10.0.0.1: check the firewall, --port-range and --interface, then restart its "
                "agent"
            ),
            None,
        ),
        (
            waiting.out_of_reach("b", "a", "::1", loopback=True),
            "out_of_reach",
            (
                "a, the master, offers address ::1, which no other host can reach: start hetagent there with "
                "--local-addr or --interface"
            ),
            None,
        ),
        (
            waiting.world_size("b", 3, 11, EVEN),
            "world_size",
            "with its 3 slots the world size would be 11, not a multiple of 4",
            None,
        ),
        (
            waiting.world_size("b", 9, 20, EVEN, nodes=2, unit="rack"),
            "world_size",
            (
                "with the 2 nodes of its rack and their 9 slots the world size would be 20, above max_world_size, "
                "which is 16"
            ),
            None,
        ),
        (
            waiting.world_size("b", 1, 4, EVEN),
            "world_size",
            "with its 1 slot the world size would be 4, below min_world_size, which is 8",
            None,
        ),
        (
            waiting.used_last("g", "b", 3),
            "used_last",
            (
                "its workers caused the last 3 failures of its rounds, so other nodes are preferred; to change that: "
                "hetctl undrain g b"
            ),
            None,
        ),
    ],
)
def test_nodes_in_no_round(why: Reason, code: str, clause: str, sentence: str | None) -> None:
    assert (why.code, why.message, why.nodes) == (code, clause, ("b",))
    told = waiting.left_out(4, "b", why)
    spare = f"round 4 runs without b, which is kept as a spare: {clause}"
    assert (told.code, told.message, told.round) == (code, sentence or spare, 4)


def test_who_could_come_back_is_named() -> None:
    assert waiting.too_few(A, 1, gone=["b"]).nodes == ("b",)
    drained = waiting.too_few(A, 1, gone=["b", "c"], drained=["c"])
    assert (drained.nodes, drained.data) == (("c",), {"missing": 1, "ready": 1, "drained": 1})
