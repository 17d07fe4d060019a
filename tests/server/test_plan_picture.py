"""hetctl plan --nodes, which needs no server: its picture on a terminal, its table elsewhere, and wrong input."""

import json
import re
from collections.abc import Callable

import pytest

from hetrdzv.cli import hetctl
from hetrdzv.protocol import codec
from hetrdzv.protocol.requests.plans import Plan
from tests.test_docs import page, section

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs hetctl plan; returns what it prints, on a terminal of some width (0: into a pipe)."""

    def run(*argv: str, columns: int = 0, status: int = 0) -> str:
        for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HET_SERVER", NOBODY)
        if columns:
            monkeypatch.setenv("COLUMNS", str(columns))
            monkeypatch.setenv("TTY_COMPATIBLE", "1")
        assert hetctl.run(["plan", *argv]) == status
        out, err = capsys.readouterr()
        return re.sub(r"\x1b\[[0-9;]*m", "", err if status else out)

    return run


def nodes_of(shown: str) -> list[str]:
    """The lines of the nodes."""
    lines = [line.rstrip() for line in shown.splitlines()]
    return lines[lines.index("") + 2 :]


def test_a_terminal_shows_a_row_of_cells_for_each_node(plan: Callable[..., str]) -> None:
    shown = plan("--nodes", "a=8,b=4,c=3", "--nnodes", "2:3", "--without", "a", "--with", "d=2", columns=100)
    assert nodes_of(shown) == [
        "d         master  ┃0┃1┃      starts",
        "b         member  │2│3│4│5│  restarts; offset was 8",
        "c         member  │6│7│8│    restarts; offset was 12",
        "a         gone    ✗ 8 slots  as supposed",
    ]
    heading = dict(re.split(" {2,}", line, maxsplit=1) for line in shown.split("\n\n")[0].splitlines())
    assert {name: value.strip() for name, value in heading.items()} == {
        "group": "example",
        "if": "a goes; d joins",
        "now": "round 1 runs on 3 nodes, world size 15",
        "then": "round 2, world size 9 on 3 nodes; master d",
        "because": "a left: as supposed",
        "restarts": "b, c (2 nodes)",
        "moves": "b, c (2 nodes)",
        "stops": "a (1 node)",
    }


def test_the_picture_in_the_docs_is_what_is_shown(plan: Callable[..., str]) -> None:
    told = section(page("docs/groups.md"), "What if").partition("    $ hetctl plan ")[2].splitlines()
    shown = [line.rstrip() for line in plan(*told[0].split(), columns=110).splitlines()]
    assert [line.removeprefix("    ") for line in told[1 : 1 + len(shown)]] == shown


def test_a_pipe_gets_a_line_for_each_node(plan: Callable[..., str]) -> None:
    shown = plan("--nodes", "8,b=4,1", "--nnodes", "2")
    assert [re.split(" {2,}", line) for line in nodes_of(shown)[:2]] == [
        ["b", "master", "0-3", "0", "4"],
        ["node1", "member", "4-11", "4", "8"],
    ]
    assert re.match(r"node3  spare +- +- +1  .*max_nodes is 2", nodes_of(shown)[2])


def test_names_that_are_made_up_are_those_of_no_other_node(plan: Callable[..., str]) -> None:
    shown = plan("--nodes", "node3=8,4,2,1", "--nnodes", "4")
    assert [line.split()[0] for line in nodes_of(shown)] == ["node2", "node3", "node4", "node5"]


def test_a_node_may_go_and_come_back_with_other_slots(plan: Callable[..., str]) -> None:
    shown = plan("--nodes", "a=8,b=4", "--nnodes", "2", "--without", "a", "--with", "a=2")
    assert "then      round 2, world size 6 on 2 nodes" in shown
    assert "\x1b" not in shown


def test_json_is_the_reply_of_the_api(plan: Callable[..., str]) -> None:
    reply = codec.checked(Plan, json.loads(plan("--nodes", "a=8,b=4", "--json")), unknown="ignore")
    assert (reply.world_size, reply.master, reply.in_s) == (12, "a", 10)


def test_without_a_round_it_says_what_is_missing(plan: Callable[..., str]) -> None:
    shown = plan("--nodes", "a=2", "--nnodes", "2", columns=80)
    assert "waiting: 1 of 2 nodes ready (a); waiting for 1 more (at most 10 min 0 s" in shown
    assert nodes_of(shown) == ["a         waits  ┊·┊·┊"]


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_many_nodes_and_long_names_fit(plan: Callable[..., str], columns: int) -> None:
    nodes = [f"n{number:03}={8 if number % 9 else 4}" for number in range(60)]
    long = "x" * 128
    shown = plan("--nodes", ",".join([*nodes, "-rf=1024", f"{long}=1024"]), columns=columns)
    text = "".join(re.sub(r"[┃│].*", "", line) for line in shown.splitlines()).replace(" ", "")
    assert "-rfmaster" in text
    assert sum(line.startswith("xxx") for line in nodes_of(shown)) >= 3, "its name is folded"
    assert "59 more" in shown, "what is the same is put together"
    assert len(nodes_of(shown)) < 20
    if columns >= 80:
        assert max(map(len, shown.splitlines())) <= columns
    assert re.search(r"│ *2499│", shown), "the last rank"
    assert len(nodes_of(plan("--nodes", ",".join(nodes)))) == 60, "a pipe gets all of them"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "name a GROUP, or say with --nodes which nodes there are"),
        (["g", "--nodes", "8"], "give GROUP or --nodes, not both"),
        (["g", "--nnodes", "2"], "--nnodes is for --nodes: 'g' has its own settings"),
        (["g", "--last-call-s", "2"], "--last-call-s is for --nodes"),
        (["--nodes", ""], "'' must be SLOTS or NODE=SLOTS, for example 8 or gpu7=8"),
        (["--nodes", "8,"], "'' must be SLOTS or NODE=SLOTS"),
        (["--nodes", "0"], "'0' must be SLOTS or NODE=SLOTS, for example 8 or gpu7=8, with 1 to 1024 slots"),
        (["--nodes", "1025"], "with 1 to 1024 slots"),
        (["--nodes", "a=-1"], "'a=-1' must be SLOTS"),
        (["--nodes", "=8"], "'' must be 1 to 128 letters"),
        (["--nodes", "a b=8"], "'a b' must be 1 to 128 letters"),
        (["--nodes", "a=8@0"], "'0' is not a number from 1e-06 to 1e+06"),
        (["--nodes", "a=8:rack"], "'rack' must be LABEL=VALUE, for example rack=r1"),
        (["--nodes", "a=8,a=4"], "'a' is named twice"),
        (["--nodes", "a=8", "--without", "b"], "--without names 'b', which is not among --nodes"),
        (["--nodes", "a=8", "--without", "a,a"], "'a' is named twice"),
        (["--nodes", "a=8", "--nnodes", "3:2"], "3:2: MIN must be at least 1, and MAX not below MIN"),
        (["--nodes", "a=8", "--lease-s", "0"], "0 is not between 0.5 and 3600"),
    ],
)
def test_wrong_input(plan: Callable[..., str], argv: list[str], said: str) -> None:
    told = plan(*argv, status=2)
    assert said in told
    assert told.count("\n") == 1


def test_a_node_that_is_there_already(plan: Callable[..., str]) -> None:
    assert "the plan adds node 'a', but group 'example' has it" in plan(
        "--nodes", "a=8", "--with", "a=4", status=1
    )


def test_a_group_needs_a_server(plan: Callable[..., str]) -> None:
    assert "no server answers (http://127.0.0.1:1: connection refused)" in plan("g", status=1)
