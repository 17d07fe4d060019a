"""Requests and replies survive a round trip through JSON; anything else is refused by name."""

import copy
import inspect
import json
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from hetrdzv.protocol import codec, directive, pages, wire
from hetrdzv.protocol.wire import Wire
from hetrdzv.words import past
from tests.fuzz.models import values
from tests.fuzz.settings import examples

Path = tuple[str | int, ...]


def kinds() -> tuple[list[Any], list[Any]]:
    """All types of requests and replies, and those inside."""
    requests = [each for _, each in inspect.getmembers(wire, inspect.isclass) if issubclass(each, Wire)]
    replies = {
        each
        for module in (directive, pages, past)
        for _, each in inspect.getmembers(module, inspect.isclass)
        if is_dataclass(each) and each.__module__ == module.__name__
    }
    return [each for each in requests if each is not Wire], sorted(replies, key=lambda each: each.__name__)


REQUESTS, REPLIES = kinds()


def test_all_types_are_looked_at() -> None:
    names = {kind.__name__ for kind in (*REQUESTS, *REPLIES)}
    assert {"JoinRequest", "ReportRequest", "SpecFields", "DirectiveReply", "GroupReply"} <= names


@pytest.mark.parametrize("kind", REQUESTS)
@given(data=st.data())
@examples(30)
def test_a_model_comes_back(kind: type[BaseModel], data: st.DataObject) -> None:
    model = data.draw(values(kind))
    assert kind.model_validate_json(model.model_dump_json()) == model
    given_only = kind.model_validate_json(model.model_dump_json(exclude_unset=True))
    assert given_only == model
    assert given_only.model_fields_set == model.model_fields_set, "what was given, and what was not"


@pytest.mark.parametrize("kind", REPLIES)
@given(data=st.data())
@examples(30)
def test_a_reply_comes_back(kind: type, data: st.DataObject) -> None:
    value = data.draw(values(kind))
    whole = codec.write(value, nulls=True)
    assert codec.read(kind, whole) == value
    assert b"".join(codec.pieces(value)) == whole


@given(value=values(directive.DirectiveReply))
@examples(50)
def test_a_directive_without_what_is_not_there_is_the_same(value: directive.DirectiveReply) -> None:
    assert codec.read(directive.DirectiveReply, codec.write(value)) == value


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The values in JSON that are no containers, and where they are."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*path, key))
    else:
        yield path, value


def objects(kind: type[BaseModel], value: Any, path: Path = ()) -> Iterator[Path]:
    """Where in a model's JSON there are models."""
    yield path
    for name, info in kind.model_fields.items():
        inner = info.annotation if inspect.isclass(info.annotation) else None
        for option in (inner, *getattr(info.annotation, "__args__", ())):
            if inspect.isclass(option) and issubclass(option, BaseModel) and isinstance(value[name], dict):
                yield from objects(option, value[name], (*path, name))


def put(document: Any, path: Path, value: Any) -> Any:
    """A copy of JSON with one value put in."""
    document = copy.deepcopy(document)
    *way, last = path
    place = document
    for key in way:
        place = place[key]
    place[last] = value
    return document


def complaints(kind: type[BaseModel], document: Any) -> set[Path]:
    """Where a model finds fault with JSON."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(json.dumps(document))
    return {error["loc"] for error in caught.value.errors()}


@pytest.mark.parametrize("kind", REQUESTS)
@given(data=st.data())
@examples(30)
def test_a_field_that_a_request_does_not_have_is_named(kind: type[BaseModel], data: st.DataObject) -> None:
    document = data.draw(values(kind, optional=False)).model_dump(mode="json")
    where = data.draw(st.sampled_from([*objects(kind, document)]))
    place = (*where, "slot_s")
    assert complaints(kind, put(document, place, data.draw(st.none() | st.integers()))) == {place}


@pytest.mark.parametrize("kind", REPLIES)
@given(data=st.data())
@examples(15)
def test_a_field_that_a_reply_does_not_have_is_ignored(kind: type, data: st.DataObject) -> None:
    value = data.draw(values(kind))
    document = put(codec.plain(value), ("slot_s",), 4)
    assert codec.read(kind, json.dumps(document), unknown="ignore") == value


WRONG: dict[type, list[Any]] = {
    bool: [0, 1, "true", "", [], {}],
    int: ["4", "", 4.5, True, [], {}, 2**53 + 1, -(2**53) - 1],
    float: ["4.5", "", "NaN", True, [], {}],
    str: [4, 4.5, True, [], {}],
}
"""By the type of a value in JSON, what must not be taken for it."""


@pytest.mark.parametrize("kind", REQUESTS)
@given(data=st.data())
@examples(60)
def test_a_value_of_another_type_is_refused_and_named(kind: type[BaseModel], data: st.DataObject) -> None:
    document = data.draw(values(kind, optional=False)).model_dump(mode="json")
    found = [(path, value) for path, value in leaves(document) if value is not None]
    assume(found)
    path, value = data.draw(st.sampled_from(found))
    wrong = data.draw(st.sampled_from(WRONG[type(value)]))
    assert complaints(kind, put(document, path, wrong)) == {path}


@pytest.mark.parametrize("kind", REQUESTS)
@given(data=st.data())
@examples(30)
def test_a_number_that_is_none_is_refused_and_named(kind: type[BaseModel], data: st.DataObject) -> None:
    document = data.draw(values(kind, optional=False)).model_dump(mode="json")
    found = [path for path, value in leaves(document) if type(value) in (int, float)]
    assume(found)
    path = data.draw(st.sampled_from(found))
    number = data.draw(st.sampled_from([float("nan"), float("inf"), -float("inf")]))
    assert complaints(kind, put(document, path, number)) == {path}
