"""Hypothesis strategies for what crosses a wall, derived from the types of the fields: any valid value."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from hypothesis import strategies as st
from pydantic import AfterValidator
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

Strategy = st.SearchStrategy[Any]


@cache
def values(kind: Any, *, optional: bool = True) -> Strategy:
    """Any value of a type that crosses a wall; fields with a default are given or not.

    Args:
        optional: whether fields with a default may be left out.
    """
    hints = get_type_hints(kind, include_extras=True)
    given = {one.name: _values(hints[one.name], []) for one in fields(kind)}
    required = {
        one.name: given.pop(one.name)
        for one in fields(kind)
        if one.default is MISSING and one.default_factory is MISSING
    }
    parts = (required, given) if optional else (required | given, {})
    return st.fixed_dictionaries(parts[0], optional=parts[1]).map(lambda made: kind(**made))


def _values(kind: Any, about: list[Any]) -> Strategy:
    kind = getattr(kind, "__supertype__", kind)  # of a NewType
    origin = get_origin(kind)
    if origin is Annotated:
        kind, *more = get_args(kind)
        return _values(kind, [*about, *more])
    if origin in (Union, UnionType):
        return st.one_of(*(_values(each, about) for each in get_args(kind)))
    if origin is Literal:
        return st.sampled_from(get_args(kind))
    if origin is Mapping:
        origin = dict
    if origin in (list, dict, tuple):
        parts = [_values(each, []) for each in get_args(kind) if each is not ...]
        if origin is tuple and len(parts) > 1:
            return st.tuples(*parts)
        limits = limits_of(about)
        size = min(3, limits.get("max_length", 3))
        return (
            st.lists(*parts, min_size=limits.get("min_length", int("checked" in limits)), max_size=size).map(
                origin
            )
            if origin is not dict
            else st.dictionaries(*parts, max_size=size)
        )
    if kind is Any:
        return st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5)
    if kind is NoneType:
        return st.none()
    if is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
        return st.fixed_dictionaries({}, optional={name: _values(hints[name], []) for name in hints})
    if is_dataclass(kind):
        return st.deferred(lambda: values(kind))  # it may have one of its own kind inside
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    return _plain(kind, limits_of(about))


def _plain(kind: type, limits: dict[str, Any]) -> Strategy:
    if kind is bool:
        return st.booleans()
    if kind is int:
        least, most = limits.get("ge", -(2**60)), limits.get("le", 2**60)
        return st.integers(least, min(most, limits.get("lt", most + 1) - 1))
    if kind is float:
        above = "gt" in limits
        least = limits["gt"] if above else limits.get("ge")
        return st.floats(least, limits.get("le"), exclude_min=above, allow_nan=False, allow_infinity=False)
    assert kind is str, f"no strategy for {kind}"
    if "pattern" in limits:
        return st.from_regex(limits["pattern"], fullmatch=True)
    if "checked" in limits:
        return st.just("sticky")  # an order, a node that may be master, and a label
    return st.text(min_size=limits.get("min_length", 0), max_size=min(20, limits.get("max_length", 20)))


def limits_of(about: list[Any]) -> dict[str, Any]:
    """What annotations say of a value, by name; the strictest where there are several."""
    limits: dict[str, Any] = {}
    for each in about:
        match each:
            case Ge(ge):
                limits["ge"] = max(ge, limits.get("ge", ge))
            case Le(le):
                limits["le"] = min(le, limits.get("le", le))
            case Lt(lt):
                limits["lt"] = lt
            case Gt(gt):
                limits["gt"] = gt
            case MinLen(min_length):
                limits["min_length"] = min_length
            case MaxLen(max_length):
                limits["max_length"] = max_length
            case FieldInfo(metadata=more):
                limits |= limits_of(more)
            case AfterValidator():
                limits["checked"] = True
            case _ if pattern := getattr(each, "pattern", None):
                limits["pattern"] = pattern
    return limits
