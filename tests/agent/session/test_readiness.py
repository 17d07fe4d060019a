"""A node that is not ready says so, and when it is: once, in any order of messages."""

from dataclasses import replace

import pytest
from tests.agent.session.driver import Bench

from hetrdzv.core import commands
from hetrdzv.protocol.requests import SpecFields
from hetrdzv.protocol.routes import Routes
from hetrdzv.protocol.states import GroupState, NodePhase

WHY = "node check failed (exit status 1): no InfiniBand"
TWO = SpecFields(min_nodes=2, max_nodes=2, lease_s=600.0, max_disconnect_s=60.0)


def joins(bench: Bench) -> list[str]:
    """Why the node was not ready, by each of its joins."""
    return [one.body.not_ready for one in bench.sent if one.what is Routes.join]


def ready(bench: Bench, why: str = "", after_round: int = 0) -> None:
    bench.session.set_ready(after_round, 1234, 5678, bench.now, why)
    bench.pump()


def change(bench: Bench, why: str) -> None:
    ready(bench, why)
    bench.collect()


def another(bench: Bench, incarnation: str = "b1", after_round: int = 0) -> None:
    offer = {"slots": 1, "address": "10.0.0.2", "port": 1}
    bench.do(commands.Join(node_id="b", incarnation=incarnation, after_round=after_round, **offer))  # type: ignore[arg-type]


def test_one_that_waits_is_taken_back_and_offered_again() -> None:
    bench = Bench(spec=TWO)
    ready(bench)
    change(bench, WHY)
    another(bench)
    assert bench.group.state is GroupState.WAITING
    change(bench, WHY)
    assert joins(bench) == ["", WHY], "the same again is no news"
    change(bench, "")
    assert bench.last.kind == "start"
    assert joins(bench) == ["", WHY, ""]


def test_once_a_round_has_begun_with_it_a_verdict_changes_nothing(bench: Bench) -> None:
    ready(bench)
    assert bench.last.kind == "start"
    change(bench, WHY)
    bench.run(3)
    assert bench.group.nodes["a"].phase is NodePhase.STARTING
    assert joins(bench) == [""]


@pytest.mark.parametrize("late", [WHY, ""])
def test_a_late_message_that_says_the_reverse_is_corrected(late: str) -> None:
    bench = Bench(spec=TWO)
    ready(bench, late)
    first = next(one for one in bench.sent if one.what is Routes.join)
    wanted = "" if late else WHY
    change(bench, wanted)
    bench.execute(replace(first))
    assert bench.group.nodes["a"].not_ready == late
    bench.run(6)
    assert bench.group.nodes["a"].not_ready == wanted
    bench.run(60)
    assert len(joins(bench)) == 3
