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


def cached_by_fields(*fields: str) -> Callable[[Callable[[_V], _R]], Callable[[_V], _R]]:
    """Keep the answer of a function that reads some fields of a value only, also for the next with the same ones."""

    def keep(function: Callable[[_V], _R]) -> Callable[[_V], _R]:
        last: tuple[list[object], _R] | None = None

        @cached
        @wraps(function)
        def answer(value: _V) -> _R:
            nonlocal last
            read: list[object] = [getattr(value, name) for name in fields]
            known = last  # plans are made in a thread
            if known is None or not all(map(is_, known[0], read)):
                known = last = read, function(value)
            return known[1]

        return answer

    return keep
