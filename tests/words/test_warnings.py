"""The sentences for warnings."""

import pytest

from hetrdzv.protocol import codec
from hetrdzv.protocol.differences import Difference
from hetrdzv.protocol.facts.parts import Other, Quoted
from hetrdzv.protocol.facts.warnings import (
    AnyWarning,
    Differs,
    NoLabel,
    NoWeights,
    Refusal,
    Unseen,
    Unwatched,
    Version,
)
from hetrdzv.protocol.texts.who import Nodes, Ranks
from hetrdzv.words.warnings import unseen, warning
from tests.words.test_snapshots import SENTENCES as SNAPSHOTS
from tests.words.unions import classes


def version(number: str, *node_ids: str) -> Version:
    return Version(version=number, nodes=Nodes.of(node_ids))


SENTENCES: list[tuple[AnyWarning, str]] = [
    (
        Differs(
            part="torch",
            odd=(version("1.0", "a"), version("3.0", "d", "e")),
            usual=version("2.0", "b", "c"),
            clear=True,
        ),
        "a has torch 1.0, d, e have 3.0, the others 2.0",
    ),
    (
        Differs(part="driver", odd=(version("570", "a"),), more=2, usual=version("580", "b"), clear=False),
        "a has GPU driver 570, 2 more versions on other nodes, b has 580",
    ),
    (
        NoLabel(label="zone", orders="ranks", nodes=Nodes.of(["a"])),
        "a has no label zone, by which ranks are ordered: it comes last",
    ),
    (
        NoLabel(label="rack", orders="units", nodes=Nodes.of(["a", "b"])),
        "a, b have no label rack, by which units are formed: each is a unit by itself",
    ),
    (NoWeights(), "rank_order is speed, but no node has a --weight: ranks are sticky"),
    *SNAPSHOTS,
    (
        Refusal(
            node_id="gpu3",
            differences=(Difference("script", "train.py", "other.py"), Difference("min_nodes", "2", "3")),
        ),
        (
            "gpu3 is refused, since it gave script=other.py, min_nodes=3, "
            "and the group has script=train.py, min_nodes=2"
        ),
    ),
    (
        Unwatched(ranks=Ranks.of([0, 1]), why=Unseen(kind="stale")),
        "ranks 0 and 1 cannot be watched: their agents have stopped reporting on them",
    ),
    (
        Unwatched(ranks=Ranks.of([2]), why=Unseen(kind="told", said=Quoted("its process groups use xccl"))),
        "rank 2 cannot be watched: its process groups use xccl",
    ),
]


@pytest.mark.parametrize(("value", "sentence"), SENTENCES, ids=lambda value: getattr(value, "kind", ""))
def test_sentence(value: AnyWarning, sentence: str) -> None:
    assert warning(value) == sentence
    assert codec.read(AnyWarning, codec.write(value, AnyWarning), unknown="ignore") == value  # type: ignore[arg-type]


def test_every_kind_has_a_sentence() -> None:
    assert classes(AnyWarning) - {type(value) for value, _ in SENTENCES} == {Other}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, ""),
        (Unseen(kind="never"), "its agent has not reported on it"),
        (Unseen(kind="no_torch"), "its script has not imported torch"),
    ],
)
def test_why_nothing_is_known_of_a_worker(value: Unseen | None, words: str) -> None:
    assert unseen(value) == words


def test_a_warning_of_a_newer_server_says_nothing() -> None:
    assert warning(Other(kind="eclipse")) == ""
