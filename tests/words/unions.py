"""What a union that is marked with `BY_KIND` is made of."""

from typing import Any, get_args


def classes(union: Any) -> set[type]:
    """Its dataclasses."""
    inside, *_ = get_args(union)
    return set(get_args(inside))
