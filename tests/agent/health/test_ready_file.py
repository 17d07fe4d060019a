"""The file that shows that the server has this node."""

from pathlib import Path

import pytest
from tests.agent.rig import Make, OtherNode, soon
from tests.agent.session.driver import Bench, problem

from hetagent.errors import UsageError
from hetagent.health.ready_file import ReadyFile
from hetrdzv.protocol.errors import HetError, Unreachable
from hetrdzv.protocol.requests import SpecFields


def test_the_file_is_there_from_the_first_join_to_the_end_whether_in_a_round_or_not(
    rig: Make, tmp_path: Path
) -> None:
    file = tmp_path / "ready"
    file.touch()  # by an agent that was killed
    seen = []

    def look(when: str) -> None:
        soon(file.exists, when)
        seen.append((when, made.group()["state"]))

    made = rig(
        "touch began; sleep 100",
        min_nodes=2,
        max_nodes=2,
        parts={"ready_file": lambda say: ReadyFile(file, say)},
    )
    assert made.parts.ready_file is not None
    made.line.on_member = made.parts.ready_file.set_joined
    assert not file.exists()
    other = OtherNode(made, "b", min_nodes=2, max_nodes=2)
    acts = [made.exists, lambda: look("waits"), other.ready, made.appears("began"), lambda: look("member")]
    made.run(*acts, made.asks("cancel"))
    assert seen == [("waits", "waiting"), ("member", "starting")]
    assert not file.exists()


@pytest.mark.parametrize(
    ("answer", "known"), [(problem(404, "not_found"), False), (Unreachable("nobody there"), True)]
)
def test_a_server_that_is_away_has_the_node_still_and_one_that_forgot_it_has_not(
    answer: HetError, known: bool
) -> None:
    bench = Bench(spec=SpecFields(min_nodes=2))
    assert not bench.session.is_member
    bench.ready()
    assert bench.session.is_member
    ((poll, _),) = bench.flight
    bench.receive(poll, answer)
    assert bench.session.is_member == known


def test_a_file_that_cannot_be_made_is_refused_and_one_that_is_something_else_stays(tmp_path: Path) -> None:
    """Where the value was forgotten, the script is taken for it."""
    script = tmp_path / "train.py"
    script.write_text("print()")
    for path, why in (
        (tmp_path / "none" / "ready", "no file can be made in"),
        (tmp_path, "something else of that name"),
        (script, "there is something else of that name"),
    ):
        with pytest.raises(UsageError, match=why):
            ReadyFile(path, print)
    assert script.read_text() == "print()"
