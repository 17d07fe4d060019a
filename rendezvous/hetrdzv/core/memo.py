"""Answers that are worked out once per frozen value and then kept with it."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

_V = TypeVar("_V")
_R = TypeVar("_R")


def cache_on_value(function: Callable[[_V], _R]) -> Callable[[_V], _R]:
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
