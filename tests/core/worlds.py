"""Tells worlds.md: which worlds unlike nodes make as they go and come. Run as: python -m tests.core.worlds"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from hetrdzv.core.model import Node, Round
from hetrdzv.protocol.texts.phrasing import count, names
from tests.core.driver import Story
from tests.core.explained import left_out

PAGE = Path(__file__).with_name("worlds.md")

SLOTS = {"gpu1": 8, "gpu2": 4, "gpu3": 4, "gpu4": 3, "gpu5": 2, "gpu6": 1}
BOUNDS = {"min_world_size": 8, "max_world_size": 16, "world_size_multiple": 4}

HEAD = """# Worlds of unlike nodes

A group of nodes with 8, 4, 4, 3, 2 and 1 slots, which was created with

    hetctl create job --world-size 8:16 --world-size-multiple 4

The first rows lose nodes one by one, the others get them back and lose two again, each after the group has settled.
*Moved* are nodes whose ranks differ from those of the round before, or that were not in it. What is chosen, and why:
[docs/groups.md](../../docs/groups.md#world-sizes). `python -m tests.core.worlds` writes this page
with the server's own functions; a test compares it.

| what happens | world | members and their rank offsets | spares, and why | moved |
|---|---|---|---|---|
"""


class Cluster:
    """A group whose nodes go and come; nothing else happens."""

    def __init__(self, slots: Mapping[str, int], **spec: object) -> None:
        self.slots = slots
        self.story = Story(last_call_s=1.0, **spec)
        self.last: Round | None = None

    def come(self, *node_ids: str) -> None:
        """Nodes join, and the group settles."""
        for node_id in node_ids:
            births = (
                len(self.story.group.nodes[node_id].former) + 2 if node_id in self.story.group.nodes else 1
            )
            self.story.join(node_id, self.slots[node_id], inc=f"{node_id}-{births}")
        self.settle()

    def go(self, node_id: str) -> None:
        """A node is lost, and the group settles."""
        self.story.lose(node_id)
        self.settle()

    def settle(self) -> None:
        """Agents do what they are told until nothing more happens."""
        story = self.story
        for _ in range(8):
            for node in list(story.group.nodes.values()):
                match story.told(node.node_id).kind if not node.gone else None:
                    case "start" if node.phase == "starting":
                        story.started(node.node_id)
                    case "stop":
                        story.join(node.node_id, node.slots)
            story.wait(1.0)

    @property
    def world(self) -> int:
        """The size of the world that runs; 0: none does."""
        active = self.story.group.active_round
        return active.world_size if active is not None else 0

    def spares(self) -> Iterator[tuple[Node, str]]:
        """The nodes that are here, but in no round, each with why."""
        for node in self.story.group.nodes.values():
            active = self.story.group.active_round
            if active is not None and not node.gone and active.member(node.node_id) is None:
                yield node, left_out(self.story, node.node_id).message

    def row(self, what: str) -> str:
        """One row of the table."""
        active = self.story.group.active_round
        if active is None:
            return f"| {what} | - | {self.story.why} | | |"
        places = ", ".join(f"{one.node_id} {one.rank_offset}" for one in active.members)
        spares = "; ".join(f"{node.node_id}: {why}" for node, why in self.spares())
        before = {one.node_id: one.rank_offset for one in self.last.members} if self.last is not None else {}
        moved = [one.node_id for one in active.members if before.get(one.node_id) != one.rank_offset]
        is_same = self.last is not None and self.last.number == active.number
        self.last = active
        moved_text = (
            "no new round" if is_same else names(moved) if before and moved else "nobody" if before else "-"
        )
        return f"| {what} | {active.world_size} | {places} | {spares} | {moved_text} |"


def rows() -> Iterator[str]:
    """The rows of the table."""
    cluster = Cluster(SLOTS, **BOUNDS)
    cluster.come(*SLOTS)
    yield cluster.row("all six are ready")
    gone = ["gpu1", "gpu3", "gpu6", "gpu4"]
    for node_id in gone:
        cluster.go(node_id)
        yield cluster.row(f"{node_id} ({count(SLOTS[node_id], 'slot')}) is lost")
    for node_id in ("gpu4", "gpu6", "gpu1", "gpu3"):
        cluster.come(node_id)
        yield cluster.row(f"{node_id} ({count(SLOTS[node_id], 'slot')}) comes back")
    for node_id in ("gpu2", "gpu5"):
        cluster.go(node_id)
        yield cluster.row(f"{node_id} ({count(SLOTS[node_id], 'slot')}) is lost")


def page() -> str:
    """The whole page."""
    return HEAD + "".join(f"{row}\n" for row in rows())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
