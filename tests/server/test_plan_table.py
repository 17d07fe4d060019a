"""What hetctl restart and drain print with --dry-run."""

from collections.abc import Iterator

import pytest

from hetrdzv.api.plans import in_words
from hetrdzv.cli.hetctl import plan as hetctl_plan
from hetrdzv.cli.hetctl import tables
from hetrdzv.core.plan import plan
from hetrdzv.protocol.requests.plans import Changes
from tests.core.driver import Story, running


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")


def shown(capsys: pytest.CaptureFixture[str], story: Story, changes: Changes) -> Iterator[list[str]]:
    """The lines that are printed, of words."""
    tables.show(*hetctl_plan.view(in_words(plan(story.group, changes, story.now)), changes))
    return (line.split() for line in capsys.readouterr().out.splitlines())


def test_a_plan_is_a_line_for_each_node(capsys: pytest.CaptureFixture[str]) -> None:
    story = running("a", "b", last_call_s=10.0, max_nodes=2)
    story.join("c", 2)
    changes = Changes(drain=("a",))
    assert list(shown(capsys, story, changes))[-4:] == [
        ["NODE", "IS", "RANKS", "OFFSET", "SLOTS", "CHANGE"],
        ["c", "master", "0-1", "0", "2", "starts"],
        ["b", "member", "2", "2", "1", "restarts;", "offset", "was", "1"],
        ["a", "gone", "-", "-", "1", "drained"],
    ]


def test_without_a_round_nodes_wait(capsys: pytest.CaptureFixture[str]) -> None:
    story = Story(min_nodes=3)
    story.join("a", 2)
    assert list(shown(capsys, story, Changes()))[-1] == ["a", "waits", "-", "-", "2"]
