"""Values as JSON and back: what is refused, with which words, and what is written."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from hetrdzv.protocol import codec
from hetrdzv.protocol.bounds import MAX_LABELS, Count, Duration, Id, Labels, ShortText, Slots, max_items
from hetrdzv.protocol.codec import MAX_FIELD_ERRORS, MalformedJson, parse_json, to_json
from hetrdzv.protocol.states import GroupState


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    count: Count = 0
    lasts_s: Duration = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Known(Inner):
    secret: str = "not for others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    node_id: Id
    slots: Slots = 1
    labels: Labels = field(default_factory=dict)
    several: Annotated[tuple[Inner, ...], max_items(3)] = ()
    state: GroupState = GroupState.WAITING
    why: ShortText | None = None
    flag: bool = False
    inner: Inner | None = None

    def __post_init__(self) -> None:
        if self.flag and self.slots == 1:
            raise ValueError("there must be several with flag")


WHOLE = Outer(
    node_id="a",
    slots=2,
    labels={"rack": "r1"},
    several=(Inner(count=1), Inner(lasts_s=2.5)),
    state=GroupState.RUNNING,
    why="because",
    flag=True,
    inner=Inner(),
)


@pytest.mark.parametrize("value", [WHOLE, Outer(node_id="a")])
@pytest.mark.parametrize("nulls", [True, False])
def test_a_value_comes_back(value: Outer, nulls: bool) -> None:
    assert parse_json(Outer, to_json(value, nulls=nulls)) == value


def test_what_is_written() -> None:
    assert "why" not in json.loads(to_json(Outer(node_id="a")))
    assert json.loads(to_json(Outer(node_id="a"), nulls=True))["why"] is None
    assert "labels" not in json.loads(to_json(WHOLE, without={"labels"}))
    value = Outer(node_id="a", several=(Known(count=1),), inner=Known())
    assert b"secret" not in to_json(value), "only the fields of the type that was declared"
    assert b"secret" in to_json(Known())


def refusal(news: Mapping[str, Any]) -> codec.FieldError:
    with pytest.raises(MalformedJson) as caught:
        parse_json(Outer, json.dumps({"node_id": "a", **news}))
    return caught.value.mistakes[0]


@pytest.mark.parametrize(
    ("news", "where", "says"),
    [
        ({"node_id": "a/b"}, "node_id", "should match pattern"),
        ({"node_id": "a" * 129}, "node_id", "at most 128 characters"),
        ({"slots": "2"}, "slots", "valid integer"),
        ({"slots": 0}, "slots", "greater than or equal to 1"),
        ({"slots": 1 << 60}, "slots", "less than or equal to 1024"),
        ({"flag": 1}, "flag", "valid boolean"),
        ({"flag": True}, "", "there must be several with flag"),
        ({"several": [{}, {"lasts_s": float("nan")}]}, "several.1.lasts_s", "less than or equal"),
        ({"several": [{}] * 4}, "several", "at most 3 items"),
        ({"inner": {"cuont": 1}}, "inner.cuont", "there is no such field"),
        ({"inner": []}, "inner", "it must be a JSON object"),
        ({"labels": {f"x{n}": "" for n in range(65)}}, "labels", f"at most {MAX_LABELS} items"),
        ({"labels": {f"x{n}": "x" * 256 for n in range(17)}}, "labels", "at most 4096 characters in all"),
    ],
)
def test_a_mistake_is_named(news: Mapping[str, Any], where: str, says: str) -> None:
    mistake = refusal(news)
    assert mistake.field == where
    assert says in mistake.text


@pytest.mark.parametrize(
    ("says", "data"),
    [
        ("it is not JSON: ", (b"", b"{", b'{"node_id": "\\ud800"}', b"[" * 10_000, b"\xff\xfe{}")),
        ("it must be a JSON object", (b"1", b"[]", b"null", b'"a"')),
    ],
)
def test_what_is_no_json_or_no_object_is_refused(says: str, data: tuple[bytes, ...]) -> None:
    for each in data:
        with pytest.raises(MalformedJson, match=says) as caught:
            parse_json(Outer, each)
        assert caught.value.mistakes[0].field == ""


def test_what_was_given_comes_with_the_mistake_and_many_are_counted_only() -> None:
    assert refusal({"slots": "two"}).given == "two"
    assert refusal({"slots": [2]}).given is None
    assert refusal({"slotss": "a secret, perhaps"}).given is None
    few, many = ({f"x{n}": 1 for n in range(wrong)} for wrong in (MAX_FIELD_ERRORS, MAX_FIELD_ERRORS + 1))
    assert refusal(few).field == "x0"
    assert refusal(many) == codec.FieldError("", "65 of its fields are unknown, malformed or out of range")


def test_a_value_that_was_made_here_can_be_checked() -> None:
    assert codec.validate_value(Outer, WHOLE) == WHOLE
    with pytest.raises(MalformedJson, match="slots: Input should be less than or equal to 1024"):
        codec.validate_value(Outer, Outer(node_id="a", slots=2_000))
