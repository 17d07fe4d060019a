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

Unknown = Literal["forbid", "ignore"]
"""What becomes of unknown fields, in pydantic's words."""

MAX_MISTAKES = 64
"""JSON with more mistakes than this is refused without a list of them: making that takes longer than all else."""

_REASONS = {
    "missing": "it is missing",
    "dataclass_type": "it must be a JSON object",
    "dict_type": "it must be a JSON object",
    "extra_forbidden": "there is no such field",
    "unexpected_keyword_argument": "there is no such field",
}
"""Plainer words for some of pydantic's errors."""

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


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


def read(kind: type[T], data: bytes | str, *, unknown: Unknown = "forbid") -> T:
    """A value from JSON, or `MalformedJson` raised, which says where and why."""
    try:
        value: T = adapter(kind).validate_json(data, strict=True, extra=unknown)
    except ValidationError as error:
        raise MalformedJson(tuple(mistakes(error))) from None
    return value


def validate(kind: type[T], value: object, *, unknown: Unknown = "forbid") -> T:
    """As `read`, from what a reader of JSON has made of it, or from a value that was made here, to check its bounds."""
    try:
        data = write(value, given=True)
    except PydanticSerializationError as error:
        raise MalformedJson((FieldError("", f"it cannot be written as JSON: {error}"),)) from None
    return read(kind, data, unknown=unknown)


def write(
    value: object,
    *,
    nulls: bool = False,
    given: bool = False,
    without: AbstractSet[str] = frozenset(),
    indent: int | None = None,
) -> bytes:
    """A value as JSON."""
    known = adapter(type(value))
    return known.dump_json(
        value,
        exclude_none=not nulls and not given,
        exclude_defaults=given,
        warnings=not given,
        exclude=set(without) if without else None,
        indent=indent,
    )


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, those inside as they are."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""What reads and writes values of a type; made when it is first needed."""


def build_validators(*kinds: Any) -> None:
    """Make what reads and writes values of some dataclasses now, so that the first request need not wait for it.

    It is kept where pydantic looks for it when it makes dataclasses that contain these: name those later.
    """
    for kind in kinds:
        known = adapter(kind)
        known.rebuild()  # if it was deferred
        kind.__pydantic_core_schema__ = known.core_schema


def mistakes(error: ValidationError) -> Iterator[FieldError]:
    """What pydantic found, in plainer words."""
    if (wrong := error.error_count()) > MAX_MISTAKES:
        yield FieldError("", f"{wrong} of its fields are unknown, malformed or out of range")
    else:
        yield from map(mistake, error.errors(include_url=False))


def mistake(details: ErrorDetails) -> FieldError:
    """One of pydantic's errors, in plainer words."""
    kind, given = details["type"], details.get("input")
    field = ".".join(str(part)[:80] for part in details["loc"] if part != "[key]")
    text = _REASONS.get(kind, details["msg"])
    if kind == "json_invalid":
        return FieldError("", f"it is not JSON: {details['ctx']['error']}")
    if kind == "value_error":
        text = str(details["ctx"]["error"])
    shown = given if isinstance(given, str | int | float) and kind not in _UNKNOWN else None
    return FieldError(field, text, shown)
