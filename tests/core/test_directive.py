"""Versions of directives, and sentences that say why (rule 9)."""

from dataclasses import replace

from hetrdzv.protocol.reasons import ends, waiting
from hetrdzv.protocol.reasons.reason import ReasonCode
from tests.core.driver import Story, running
from tests.core.explained import ready, waits_for


def test_version_does_not_change_with_the_text() -> None:
    story = Story(min_nodes=3)
    first = story.join("a")
    story.join("b")
    story.wait(5)
    second = story.told("a")
    assert first.reason != second.reason
    assert first.version == second.version


def test_version_changes_with_kind_round_and_reason() -> None:
    story = running("a", "b")
    versions = [story.told("a").version]
    story.restart()
    versions.append(story.told("a").version)
    versions.append(story.join("a").version)
    story.join("b")
    versions.append(story.told("a").version)
    story.lose("a")
    versions.append(story.told("a").version)
    story.cancel()
    versions.append(story.told("a").version)
    assert len(set(versions)) == len(versions)


def test_members_agree() -> None:
    story = running("a", "b", "c")
    starts = [story.told(node_id).start for node_id in ("a", "b", "c")]
    assert len({(s.master, s.world_size, s.nnodes, s.restart_count) for s in starts if s}) == 1
    assert [s.group_rank for s in starts if s] == [0, 1, 2]


def test_why_says_since_when_nobody_is_here() -> None:
    story = Story()
    story.put(min_nodes=3)
    story.joins("a", "b")
    story.leave("a")
    what = waits_for(story)
    assert what.code == "too_few_nodes"
    assert what.since is None
    story.wait(1.0)
    story.leave("b")
    gone_at = story.now
    story.pass_by(10.0)
    assert waits_for(story) == waiting.too_few(ready=ready([], 3), missing=3, since=gone_at)


def test_why_says_what_ended_the_round_before() -> None:
    story = running("a", "b")
    story.lose("b")
    story.join("a")
    assert story.reason.cause == replace(
        ends.node_lost("b", ends.departed(ReasonCode.CONNECTION_LOST)), round=1
    )
    few = waiting.too_few(ready(["a"], 2), 1, until=story.now + 600)
    assert waits_for(story) == waiting.in_place_of(few, ["b"])
