"""A node that cannot begin from where the others do takes no part; the rest of a round: test_loop, test_hook."""

from dataclasses import replace
from typing import Any, cast

import pytest
from tests.agent.workers.test_store import start

from hetagent.errors import OutOfResourcesError
from hetagent.launch.base import Assignment, Launch
from hetagent.launch.command import WorkerCommand
from hetagent.runloop.local_round import LocalRound, Phase
from hetagent.runloop.parts import Parts
from hetrdzv.protocol.snapshots import StartSnapshot


def test_a_node_without_snapshots_does_not_begin_from_nothing_while_others_load_one() -> None:
    of = start("a", 1).start
    assert of is not None
    of = replace(of, slots=1, snapshot=StartSnapshot(round=1, step=40, world_size=2))
    launch = Launch(WorkerCommand("true", (), is_python=False))
    starter = cast("Any", None)
    made = LocalRound(Assignment(group="g", node_id="a", round=1, start=of), launch, starter, "none", Parts())
    with pytest.raises(OutOfResourcesError, match="snapshot of step 40, and this node keeps none"):
        made.start({})
    made.clear()
    assert made.phase is Phase.GONE
