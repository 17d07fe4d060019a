"""Groups of every kind as they are stored; `python -m tests.fuzz.stored DIRECTORY` writes what today's code makes.

At every release, the first of which is 0.2.0, it is written into `tests/storage/fixtures/0.2.0`, and not again: later
versions have to read it.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from hetrdzv.core.directive import make_directive
from hetrdzv.core.model import Group
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.replies import Event
from hetrdzv.protocol.settings import OnJoin
from hetrdzv.storage.records import event_key, make_record
from tests.core.driver import Story, running
from tests.support.restored import stored_records

GB = {"gpu": "NVIDIA H200", "driver": "590.1"}


def waiting() -> Story:
    """Three nodes of four, and one that has left."""
    story = Story(min_nodes=4, max_nodes=8, command=("train.py", "--lr", "0.1"), lease_s=7.5)
    story.join("gpu1", 8, labels={"rack": "r1"}, device=GB, script_port=4001)
    story.join("gpu2", 4, role="trainer", wants_command=True)
    story.join("gpu10", 8)
    story.join("gpu3", 1)
    story.leave("gpu3", "SIGTERM")
    return story


def restarted() -> Story:
    """The second round, after a failure; one member cannot be reached by another, a spare is there."""
    story = running("gpu1", "gpu2", max_nodes=2, on_join=OnJoin.SPARE)
    story.join("gpu3", 2)
    story.failed("gpu2", age_s=0.25, exit_code=None, signal="SIGKILL", message="boom\n\x00é🙂")
    story.joins("gpu1", "gpu2")
    story.unreachable("gpu2")
    story.joins("gpu1", "gpu2")
    return story


def ended() -> Story:
    """A round that ended by a loss; its members have not all stopped."""
    story = running("gpu1", "gpu2", "gpu3")
    story.failed("gpu1")
    story.lose("gpu2")
    story.join("gpu1")
    return story


def drained() -> Story:
    """A node was taken out and another replaced by a new agent."""
    story = running("gpu1", "gpu2", min_nodes=1)
    story.drain("gpu2")
    story.cut("gpu1")
    story.join("gpu1", inc="gpu1-2")
    return story


def failed() -> Story:
    """A job that spent its restarts."""
    story = running("gpu1", "gpu2", max_restarts=0)
    story.failed("gpu2", exit_code=41)
    story.joins("gpu1", "gpu2")
    return story


def second_job() -> Story:
    """A finished group in which another job begins, while nodes of the first are remembered."""
    story = failed()
    story.leave("gpu1")
    story.leave("gpu2")
    story.join("gpu5", inc="gpu5-1")
    return story


def cancelled() -> Story:
    """A group that was made by a person and cancelled."""
    story = Story()
    story.put(min_nodes=2, replace_wait_s=30)
    story.join("gpu1", 8)
    story.cancel()
    return story


STORIES: tuple[Callable[[], Story], ...] = (
    waiting,
    restarted,
    ended,
    drained,
    failed,
    second_job,
    cancelled,
)


def records_of(group: Group, events: list[Reason]) -> dict[str, bytes]:
    """Everything that a store holds of a group."""
    stored = stored_records(group)
    for number, event in enumerate(events, 1):
        line = Event(number=number, at="2026-11-21T10:00:00.000+00:00", reason=event)
        stored[event_key(group.group_id, number)] = make_record(line)
    return stored


def told(group: Group, now: float) -> dict[str, str]:
    """What each node of a group is told."""
    return {node_id: make_directive(group, node, now).version for node_id, node in group.nodes.items()}


def fixture(story: Story) -> Mapping[str, object]:
    """A group as JSON: its records, and what its nodes are told."""
    stored = records_of(story.group, story.events)
    return {
        "records": {key: record.decode() for key, record in stored.items()},
        "told": told(story.group, story.now),
    }


if __name__ == "__main__":
    for make in STORIES:
        path = Path(sys.argv[1], f"{make.__name__}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(fixture(make()), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
