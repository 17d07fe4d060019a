"""Which numbers of a value are not finite: JSON has no word for them, so no record could hold them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from math import isfinite
from operator import attrgetter
from typing import Any, get_args, get_type_hints


def has_same_numbers(value: Any, since: Any, *, without: str = "") -> bool:
    """Whether all fields of a dataclass that may hold floats are the same as in another one; see `not_finite`."""
    kind: Any = type(value)
    _, numbers_of = _with_numbers(kind, without)
    return bool(numbers_of(value) == numbers_of(since))


def not_finite(value: Any, *, without: str = "") -> Iterator[str]:
    """The fields of a dataclass with an infinite number or none (NaN), nested ones included, one clause each.

    Args:
        without: a field to pass over.
    """
    kind: Any = type(value)
    names, numbers_of = _with_numbers(kind, without)
    for name, number in zip(names, numbers_of(value), strict=True):
        if number and not (type(number) is float and isfinite(number)):
            yield from _inside(number, name)


def _inside(value: Any, place: str) -> Iterator[str]:
    match value:
        case float():
            if not isfinite(value):
                yield f"{place} is {value}"
        case Mapping():
            for key, item in value.items():
                yield from _inside(item, f"{place}.{key}")
        case tuple() | frozenset():
            for number, item in enumerate(value):
                yield from _inside(item, f"{place}.{number}")
        case _ if is_dataclass(value):
            for clause in not_finite(value):
                yield f"{place}.{clause}"


@cache
def _with_numbers(kind: type, without: str = "") -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """The fields of a dataclass that may hold floats, themselves or inside, and what gets their values."""
    hints = get_type_hints(kind)
    names = tuple(f.name for f in fields(kind) if f.name != without and _may_hold_floats(hints[f.name]))
    match names:
        case ():
            return names, lambda value: ()
        case (name,):
            return names, lambda value: (getattr(value, name),)
    return names, attrgetter(*names)


def _may_hold_floats(hint: Any, inside: tuple[type, ...] = ()) -> bool:
    if hint is float:
        return True
    if isinstance(hint, type) and is_dataclass(hint):
        parts = get_type_hints(hint).values() if hint not in inside else ()
        return any(_may_hold_floats(part, (*inside, hint)) for part in parts)
    return any(_may_hold_floats(part, inside) for part in get_args(hint))
