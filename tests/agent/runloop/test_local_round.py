"""Whose workers may not begin, and whose end is no failure; the rest of a round: test_loop, test_hook."""

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from tests.agent.workers.test_store import start

from hetagent.errors import OutOfResourcesError
from hetagent.launch.base import Assignment, Launch
from hetagent.launch.command import WorkerCommand
from hetagent.runloop.local_round import LocalEnd, LocalRound, RoundPhase
from hetagent.runloop.parts import AgentParts
from hetrdzv.protocol.snapshots import StartSnapshot


def local_round(parts: AgentParts, **fields: Any) -> LocalRound:
    of = start("a", 1).start
    assert of is not None
    assignment = Assignment(group="g", node_id="a", round=1, start=replace(of, slots=1, **fields))
    made = LocalRound(Launch(WorkerCommand("true", (), is_python=False)), Mock(), Mock(), parts)
    made.begin(assignment)
    return made


def test_a_node_without_snapshots_does_not_begin_from_nothing_while_others_load_one() -> None:
    made = local_round(AgentParts(), snapshot=StartSnapshot(round=1, step=40, world_size=2))
    with pytest.raises(OutOfResourcesError, match="snapshot of step 40, but this node has none"):
        made.start({})
    made.clear()
    assert made.phase is RoundPhase.GONE


def test_a_failure_for_which_the_node_gives_up_is_none() -> None:
    """Why is known only once the output of its workers has come."""
    made = local_round(
        AgentParts(snapshots=Mock(abandon_reason=Mock(side_effect=["cannot begin there", ""])))
    )
    made._workers, made._end, made.phase = Mock(take_exits=list), LocalEnd(Mock(), 0.0), RoundPhase.ENDING
    assert made.take_end() is None
    assert made.take_end() is made._end
