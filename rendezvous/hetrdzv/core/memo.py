"""Answers that are worked out once per frozen value and then kept with it."""

from collections.abc import Callable
from functools import wraps
from operator import is_
from typing import Any, TypeVar

_V = TypeVar("_V")
_R = TypeVar("_R")


def cached(function: Callable[[_V], _R]) -> Callable[[_V], _R]:
    """Keep the answer of a pure function of a frozen dataclass (without slots) in that value.

    A value that `dataclasses.replace` makes begins without answers, so none can be out of date.
    """
    name = f"cached {function.__module__}.{function.__qualname__}"

    @wraps(function)
    def answer(value: _V) -> _R:
        known: dict[str, Any] = value.__dict__
        if name not in known:
            known[name] = function(value)
        result: _R = known[name]
        return result

    return answer


MOST_RECENT = 4
"""How many answers `cached_by_fields` keeps beside those in the values themselves."""


def cached_by_fields(*fields: str) -> Callable[[Callable[[_V], _R]], Callable[[_V], _R]]:
    """Keep the answer of a function that reads some fields of a value only, also for the next value with the same ones.

    For searches: one command makes several versions of a group, of which most differ in a time alone.
    """

    def keep(function: Callable[[_V], _R]) -> Callable[[_V], _R]:
        recent: tuple[tuple[list[object], _R], ...] = ()

        @cached
        @wraps(function)
        def answer(value: _V) -> _R:
            nonlocal recent
            read: list[object] = [getattr(value, name) for name in fields]
            for known, result in recent:  # a tuple, replaced as a whole: plans are made in a thread
                if all(map(is_, known, read)):
                    return result
            result = function(value)
            recent = ((read, result), *recent[: MOST_RECENT - 1])
            return result

        return answer

    return keep
