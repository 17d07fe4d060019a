"""Requests and replies survive a round trip through JSON. How others are refused: tests/core/test_codec.py."""

import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetrdzv.protocol import codec, directive, pages, rounds
from hetrdzv.protocol.bounds import Body
from tests.fuzz.models import values
from tests.fuzz.settings import examples
from tests.support.routes import body_of, routes


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
