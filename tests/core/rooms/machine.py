"""What workers do about shares in the machine of test_machine.py."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from hetrdzv.core.model import Group
from hetrdzv.core.rooms.shares import Refresh, decided, decisions
from hetrdzv.core.rooms.shares.decisions import Worked


class SharesRules:
    """A part of `GroupMachine`."""

    group: Group
    living: Any
    send: Any

    @staticmethod
    def offer(slots: int) -> dict[str, Any]:
        """Fields of the offer of a node with so many slots."""
        return {"speeds": tuple(1.0 + slot for slot in range(slots)) if slots % 2 else ()}

    @staticmethod
    def check_room(before: Group, after: Group) -> None:
        """A command was applied."""
        old, new = before.round, after.round
        if old is not None and new is not None and old.number == new.number:
            for shares in new.shares:
                assert decided(old, shares.number) in (None, shares), "shares were decided twice"

    @rule(
        number=st.integers(0, 3),
        ahead=st.integers(-2, 2),
        busy=st.lists(st.sampled_from([0.0, 0.2, 0.9, 1.0]), max_size=8),
    )
    def workers_ask_for_shares(self, number: int, ahead: int, busy: list[float]) -> None:
        """For the next decision, for one that was made, or for one that cannot be."""
        working = [agent for agent in self.living() if agent.at_work]
        before = self.group.active_round
        if not working or before is None:
            return
        agent = working[number % len(working)]
        wanted = max(1, decisions(before)[-1].number + ahead)
        worked = {
            rank: Worked(busy[rank % len(busy)], 20) for rank in range(before.world_size if busy else 0)
        }
        command = Refresh(
            node_id=agent.node_id,
            incarnation=agent.incarnation,
            round=agent.round,
            number=wanted,
            worked=worked,
        )
        known = decided(before, wanted)
        if self.send(agent, command):
            assert agent.round == before.number, "workers of another round got shares of this one"
            after = self.group.round
            assert after is not None
            assert after.end is None, "shares ended a round"
            assert decided(after, wanted) is not None
            assert known in (None, decided(after, wanted))
            assert known is not None or wanted == decisions(before)[-1].number + 1
