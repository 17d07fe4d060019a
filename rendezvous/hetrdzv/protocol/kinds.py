"""Unions of dataclasses that are told apart by their `kind`, which is a `Literal`."""

from collections.abc import Callable
from typing import Any, ClassVar


class ByKind:
    """Marks such a union (codec.py); a value of an unknown kind is refused."""

    __get_pydantic_core_schema__: ClassVar[Callable[..., Any] | None] = None


BY_KIND = ByKind()
