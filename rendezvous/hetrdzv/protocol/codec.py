"""Values as JSON and back, for HTTP and for the store.

Unknown fields are refused in requests, where they are typos, and ignored in replies and records, which a newer server
may have written.
"""

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import fields
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError

T = TypeVar("T")

UnknownFields = Literal["forbid", "ignore"]
"""What becomes of unknown fields, in pydantic's words."""

MAX_FIELD_ERRORS = 64
"""JSON with more mistakes than this is refused without a list of them: making that takes longer than all else."""

_ERROR_TEXTS = {
    "missing": "it is missing",
    "dataclass_type": "it must be a JSON object",
    "dict_type": "it must be a JSON object",
    "extra_forbidden": "there is no such field",
    "unexpected_keyword_argument": "there is no such field",
}
"""Plainer words for some of pydantic's errors."""

_UNKNOWN_FIELD_ERROR_TYPES = ("extra_forbidden", "unexpected_keyword_argument")


class FieldError(NamedTuple):
    """Something that is wrong with JSON, in a field as people write it (`spec.command.0`); empty: in all of it."""

    field: str
    text: str
    given: str | float | None = None


class MalformedJson(ValueError):
    """JSON that is no value of a type."""

    def __init__(self, mistakes: tuple[FieldError, ...]) -> None:
        super().__init__("; ".join(f"{one.field}: {one.text}" if one.field else one.text for one in mistakes))
        self.mistakes = mistakes


def parse_json(kind: type[T], data: bytes | str, *, unknown: UnknownFields = "forbid") -> T:
    """A value from JSON, or `MalformedJson` raised, which says where and why."""
    try:
        value: T = type_adapter(kind).validate_json(data, strict=True, extra=unknown)
    except ValidationError as error:
        raise MalformedJson(tuple(make_field_errors(error))) from None
    return value


def validate_value(kind: type[T], value: object, *, unknown: UnknownFields = "forbid") -> T:
    """As `parse_json`, from what a reader of JSON has made of it, or from a value made here, to check its bounds."""
    try:
        data = to_json(value, given=True)
    except PydanticSerializationError as error:
        raise MalformedJson((FieldError("", f"it cannot be written as JSON: {error}"),)) from None
    return parse_json(kind, data, unknown=unknown)


def to_json(
    value: object,
    *,
    nulls: bool = False,
    given: bool = False,
    without: AbstractSet[str] = frozenset(),
    indent: int | None = None,
) -> bytes:
    """A value as JSON."""
    known = type_adapter(type(value))
    return known.dump_json(
        value,
        exclude_none=not nulls and not given,
        exclude_defaults=given,
        warnings=not given,
        exclude=set(without) if without else None,
        indent=indent,
    )


def fields_by_name(value: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, those inside as they are."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


type_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""What reads and writes values of a type; made when it is first needed."""


def build_validators(*kinds: Any) -> None:
    """Make what reads and writes values of some dataclasses now, so that the first request need not wait for it.

    It is kept where pydantic looks for it when it makes dataclasses that contain these: name those later.
    """
    for kind in kinds:
        known = type_adapter(kind)
        known.rebuild()  # if it was deferred
        kind.__pydantic_core_schema__ = known.core_schema


def make_field_errors(error: ValidationError) -> Iterator[FieldError]:
    """What pydantic found, in plainer words."""
    if (wrong := error.error_count()) > MAX_FIELD_ERRORS:
        yield FieldError("", f"{wrong} of its fields are unknown, malformed or out of range")
    else:
        yield from map(make_field_error, error.errors(include_url=False))


def make_field_error(details: ErrorDetails) -> FieldError:
    """One of pydantic's errors, in plainer words."""
    kind, given = details["type"], details.get("input")
    field = ".".join(str(part)[:80] for part in details["loc"] if part != "[key]")
    text = _ERROR_TEXTS.get(kind, details["msg"])
    if kind == "json_invalid":
        return FieldError("", f"it is not JSON: {details['ctx']['error']}")
    if kind == "value_error":
        text = str(details["ctx"]["error"])
    shown = given if isinstance(given, str | int | float) and kind not in _UNKNOWN_FIELD_ERROR_TYPES else None
    return FieldError(field, text, shown)
