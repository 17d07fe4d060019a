"""How pydantic reads and writes unions that are marked with `BY_KIND`; without this module, nobody else knows it."""

from dataclasses import fields
from functools import reduce
from operator import or_
from typing import Annotated, Any, get_args

from pydantic import Discriminator, GetCoreSchemaHandler, Tag
from pydantic_core import CoreSchema

from hetrdzv.protocol.parts import ByKind, Other


def _schema(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    classes = get_args(source)
    known = {kind: one for one in classes for kind in _kinds(one)}

    def tag(value: Any) -> str | None:
        kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
        return kind if kind in known or Other not in classes else ""

    tagged = reduce(or_, (Annotated[one, Tag(kind)] for kind, one in known.items()))
    return handler.generate_schema(Annotated[tagged, Discriminator(tag)])


def _kinds(one: Any) -> tuple[str, ...]:
    """The kinds of a class of a union; of `Other` the empty one."""
    if one is Other:
        return ("",)
    return next(get_args(known.type) for known in fields(one) if known.name == "kind")


ByKind.__get_pydantic_core_schema__ = staticmethod(_schema)
