"""What hetctl plan prints, and its wrong input."""

from collections.abc import Iterator

import pytest

from hetrdzv.api.plans import in_words
from hetrdzv.cli import hetctl
from hetrdzv.cli.hetctl import plan_table
from hetrdzv.core.plan import plan
from hetrdzv.protocol.requests.plans import Changes, NewNode
from tests.core.driver import Story, running

NOBODY = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")


def shown(capsys: pytest.CaptureFixture[str], story: Story, changes: Changes) -> Iterator[list[str]]:
    """The lines that are printed, of words."""
    plan_table.show(in_words(plan(story.group, changes, story.now)), changes)
    return (line.split() for line in capsys.readouterr().out.splitlines())


def test_a_plan_is_a_line_for_each_node(capsys: pytest.CaptureFixture[str]) -> None:
    story = running("a", "b", last_call_s=10.0, max_nodes=2)
    changes = Changes(remove=("a",), add=(NewNode(slots=2, node_id="c"), NewNode(slots=2)))
    assert list(shown(capsys, story, changes))[-5:] == [
        ["NODE", "IS", "RANKS", "OFFSET", "SLOTS", "CHANGE"],
        ["c", "master", "0-1", "0", "2", "starts"],
        ["b", "member", "2", "2", "1", "restarts;", "offset", "was", "1"],
        ["new1", "spare", "-", "-", "2", "max_nodes", "is", "2"],
        ["a", "gone", "-", "-", "1", "as", "supposed"],
    ]


def test_without_a_round_nodes_wait(capsys: pytest.CaptureFixture[str]) -> None:
    story = Story(min_nodes=3)
    story.join("a", 2)
    assert list(shown(capsys, story, Changes()))[-1] == ["a", "waits", "-", "-", "2"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "Missing argument 'GROUP'"),
        (["g", "--with", ""], "'' must be SLOTS or NODE=SLOTS, for example 8 or gpu7=8"),
        (["g", "--with", "8,"], "'' must be SLOTS or NODE=SLOTS"),
        (
            ["g", "--with", "1025"],
            "'1025' must be SLOTS or NODE=SLOTS, for example 8 or gpu7=8, with 1 to 1024",
        ),
        (["g", "--with", "a=-1"], "'a=-1' must be SLOTS"),
        (["g", "--with", "a b=8"], "'a b' must be 1 to 128 letters"),
        (["g", "--with", "a=8@0"], "'0' is not a number from 1e-06 to 1e+06"),
        (["g", "--with", "a=8:rack"], "'rack' must be LABEL=VALUE, for example rack=r1"),
        (["g", "--with", "a=8,a=4"], "'a' is named twice"),
        (["g", "--without", "a,a"], "'a' is named twice"),
    ],
)
def test_wrong_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argv: list[str], said: str
) -> None:
    monkeypatch.setenv("HET_SERVER", NOBODY)
    assert hetctl.run(["plan", *argv]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
