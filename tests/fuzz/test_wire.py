"""Requests and replies survive a round trip through JSON; anything else is refused by name."""

import copy
import inspect
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hetrdzv.protocol import codec, directive, pages, rounds
from hetrdzv.protocol.bounds import Body
from tests.fuzz.models import values
from tests.fuzz.settings import examples
from tests.support.routes import body_of, routes

Path = tuple[str | int, ...]


def bodies(kind: type) -> Iterator[type]:
    """A type of a request's body, and those inside."""
    if is_dataclass(kind):
        yield kind
        for one in fields(kind):
            for inner in parts(one.type):
                yield from bodies(inner)


def parts(hint: Any) -> Iterator[type]:
    """The types that are in an annotation."""
    if inspect.isclass(hint):
        yield hint
    for inner in getattr(hint, "__args__", ()):
        yield from parts(inner)


def kinds() -> tuple[list[Any], list[Any]]:
    """All types of requests and replies, and those inside."""
    requests = {each for route in routes().values() for each in bodies(body_of(route))}
    replies = {
        each
        for module in (directive, pages, rounds)
        for _, each in inspect.getmembers(module, inspect.isclass)
        if is_dataclass(each) and each.__module__ == module.__name__
    }
    return by_name(requests), by_name(replies)


def by_name(found: set[type]) -> list[type]:
    """In an order that is always the same."""
    return sorted(found, key=lambda each: each.__name__)


REQUESTS, REPLIES = kinds()


def test_all_types_are_looked_at() -> None:
    names = {kind.__name__ for kind in (*REQUESTS, *REPLIES)}
    assert {"JoinRequest", "Collectives", "Directive", "GroupReply"} <= names


def test_every_body_refuses_other_fields_in_the_document() -> None:
    assert all(issubclass(kind, Body) for kind in REQUESTS)


@pytest.mark.parametrize("kind", REQUESTS)
@given(data=st.data())
@examples(30)
def test_a_request_comes_back(kind: type, data: st.DataObject) -> None:
    value = data.draw(values(kind))
    assert codec.read(kind, codec.write(value, given=True)) == value, "with what was given, and what was not"


@pytest.mark.parametrize("kind", REPLIES)
@given(data=st.data())
@examples(30)
def test_a_reply_comes_back(kind: type, data: st.DataObject) -> None:
    value = data.draw(values(kind))
    assert codec.read(kind, codec.write(value, nulls=True)) == value


@given(value=values(directive.Directive))
@examples(50)
def test_a_directive_without_what_is_not_there_is_the_same(value: directive.Directive) -> None:
    assert codec.read(directive.Directive, codec.write(value)) == value


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The values in JSON that are no containers, and where they are."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*path, key))
    else:
        yield path, value


def objects(kind: type, value: Any, path: Path = ()) -> Iterator[Path]:
    """Where in the JSON of a value there are others."""
    yield path
    for one in fields(kind):
        for option in parts(one.type):
            if is_dataclass(option) and isinstance(value.get(one.name), dict):
                yield from objects(option, value[one.name], (*path, one.name))


def put(document: Any, path: Path, value: Any) -> Any:
    """A copy of JSON with one value put in."""
    document = copy.deepcopy(document)
    *way, last = path
    place = document
    for key in way:
        place = place[key]
    place[last] = value
    return document


def as_field(place: Path) -> str:
    return ".".join(str(part)[:80] for part in place)


def complaints(kind: type, document: Any) -> set[str]:
    """What is wrong with JSON, by its place."""
    with pytest.raises(codec.Malformed) as caught:
        codec.read(kind, json.dumps(document))
    return {mistake.field for mistake in caught.value.mistakes}


def drawn(kind: type, data: st.DataObject) -> Any:
    """The JSON of any value."""
    return json.loads(codec.write(data.draw(values(kind, optional=False)), given=True))


@pytest.mark.parametrize("kind", REQUESTS)
@given(data=st.data())
@examples(30)
def test_a_field_that_a_request_does_not_have_is_named(kind: type, data: st.DataObject) -> None:
    document = drawn(kind, data)
    where = data.draw(st.sampled_from([*objects(kind, document)]))
    place = (*where, "slot_s")
    assert complaints(kind, put(document, place, data.draw(st.none() | st.integers()))) == {as_field(place)}


@pytest.mark.parametrize("kind", REPLIES)
@given(data=st.data())
@examples(15)
def test_a_field_that_a_reply_does_not_have_is_ignored(kind: type, data: st.DataObject) -> None:
    value = data.draw(values(kind))
    document = put(json.loads(codec.write(value, nulls=True)), ("slot_s",), 4)
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
def test_a_value_of_another_type_is_refused_and_named(kind: type, data: st.DataObject) -> None:
    document = drawn(kind, data)
    found = [(path, value) for path, value in leaves(document) if value is not None]
    assume(found)
    path, value = data.draw(st.sampled_from(found))
    wrong = data.draw(st.sampled_from(WRONG[type(value)]))
    assert complaints(kind, put(document, path, wrong)) == {as_field(path)}
