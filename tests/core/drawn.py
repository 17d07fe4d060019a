"""The state machine as docs/design.md draws it."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from hetrdzv.protocol.states import GroupState

DESIGN = Path(__file__).parents[2] / "docs" / "design.md"


@cache
def arrows() -> Mapping[GroupState, frozenset[GroupState]]:
    """Where an arrow of the drawing leads from each state."""
    found = re.findall(r"^    (\w+) --> (\w+):", DESIGN.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        state: frozenset(GroupState(to) for start, to in found if start == state.value)
        for state in GroupState
    }


def is_drawn(before: GroupState, after: GroupState) -> bool:
    """Whether one step may lead from a state to another: along an arrow, or further if it comes by `waiting`."""
    at_once = arrows()[before]
    if GroupState.WAITING in at_once:
        at_once |= arrows()[GroupState.WAITING]
    return before is after or after in at_once
