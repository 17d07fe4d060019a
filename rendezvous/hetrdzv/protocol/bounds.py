"""The types of the fields of all that is sent or stored, each with its bounds.

Times are in seconds. What `annotated_types` has no word for is a rule of our own, which tells pydantic's schemas about
itself; nothing of pydantic is imported for that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le, Lt, MaxLen

from hetrdzv.protocol.settings import MAX_SLOTS, MAX_WORLD_SIZE
from hetrdzv.protocol.texts.ids import ID_PATTERN, MAX_ID_LENGTH

MAX_BODY_BYTES = 1 << 20
"""The largest body of a request."""

MAX_VALUES = 32_768
"""How many JSON values the body of a request may have, about; a node with 1,024 workers sends half as many."""

MAX_NUMBER = 2**53
"""The largest integer that every reader of JSON understands as the same number."""

MAX_SECONDS = 1e9
"""The longest duration (seconds): about thirty years. Sums of such and of clocks keep their milliseconds."""

MIN_WEIGHT, MAX_WEIGHT = 1e-6, 1e6
"""Bounds of a node's weight: ratios and sums of weights stay far from what a float cannot hold."""

MAX_NOT_READY = 2_000
"""How long the reason may be why a node is not ready (characters)."""

MAX_LABELS = 64
"""How many labels, or facts of its device, a node has at most."""

MAX_LABEL_CHARACTERS = 4_096
"""How many characters its labels have in all, and the facts of its device: a reply may show those of all nodes."""

MAX_KNOWN_S = 3600.0
"""For how long a sample may hold (seconds)."""

MAX_PROCESS_GROUPS = 32
"""How many process groups of one worker a sample may have."""

MAX_ALL_PROCESS_GROUPS = 1024
"""How many process groups of all workers of a node together."""


# -- rules of our own ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Matches:
    """A text matches a regular expression from its beginning to its end."""

    pattern: str

    def __get_pydantic_core_schema__(self, kind: Any, schema_of: Callable[[Any], dict[str, Any]]) -> Any:
        return {**schema_of(kind), "pattern": self.pattern}


@dataclass(frozen=True, slots=True)
class AtMost:
    """A tuple has no more items than this; reading it ends at the first wrong one, or where it gets too long."""

    items: int

    def __get_pydantic_core_schema__(self, kind: Any, schema_of: Callable[[Any], dict[str, Any]]) -> Any:
        return {**schema_of(kind), "max_length": self.items, "fail_fast": True}


@dataclass(frozen=True, slots=True)
class Checked:
    """A value passes a check, which raises ValueError with what is wrong with it."""

    check: Callable[[Any], None]

    def __get_pydantic_core_schema__(self, kind: Any, schema_of: Callable[[Any], dict[str, Any]]) -> Any:
        return {"type": "function-after", "function": _plainly(self.check), "schema": schema_of(kind)}


def _plainly(check: Callable[[Any], None]) -> dict[str, Any]:
    def checked(value: Any) -> Any:
        check(value)
        return value

    return {"type": "no-info", "function": checked}


class OrNewer:
    """Of an enum or a text: the enum where it has the word, else the text, which a newer version has sent."""

    def __get_pydantic_core_schema__(self, kind: Any, schema_of: Callable[[Any], dict[str, Any]]) -> Any:
        error = {"custom_error_type": "word", "custom_error_message": "Input should be a valid string"}
        return {**schema_of(kind), "mode": "left_to_right", **error}

    def __get_pydantic_json_schema__(self, core: Any, schema_of: Callable[[Any], dict[str, Any]]) -> Any:
        return schema_of({**core, "choices": core["choices"][:1]})


class Documented:
    """Adds to what the document of the API says of a value; nothing here looks at that."""

    def __init__(self, **more: object) -> None:
        self._more = more

    def __get_pydantic_json_schema__(self, core: Any, schema_of: Callable[[Any], dict[str, Any]]) -> Any:
        return {**schema_of(core), **self._more}


class Body:
    """Base of what requests bring: the document says that it has no other fields."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}


# -- texts -----------------------------------------------------------------------------------------------------

Id = Annotated[str, MaxLen(MAX_ID_LENGTH), Matches(ID_PATTERN)]
Text = Annotated[str, MaxLen(16_384)]
ShortText = Annotated[str, MaxLen(256)]


# -- numbers ---------------------------------------------------------------------------------------------------

Whole = Annotated[int, Ge(-MAX_NUMBER), Le(MAX_NUMBER)]
Count = Annotated[int, Ge(0), Le(MAX_NUMBER)]
Positive = Annotated[int, Ge(1), Le(MAX_NUMBER)]
Slots = Annotated[int, Ge(1), Le(MAX_SLOTS)]
Workers = Annotated[int, Ge(0), Le(MAX_WORLD_SIZE)]
"""How many workers."""
Rank = Annotated[int, Ge(0), Lt(MAX_WORLD_SIZE)]
ExitCode = Annotated[int, Ge(-(2**31)), Lt(2**32)]
"""Unix has 0 to 255, Windows 32 bits."""
Port = Annotated[int, Ge(1), Le(65_535)]
Seconds = Annotated[float, Ge(-MAX_SECONDS), Le(MAX_SECONDS)]
Duration = Annotated[float, Ge(0), Le(MAX_SECONDS)]
Fraction = Annotated[float, Ge(0), Le(1)]
Weight = Annotated[float, Ge(MIN_WEIGHT), Le(MAX_WEIGHT)]


# -- labels ----------------------------------------------------------------------------------------------------


def _short(labels: Mapping[str, str]) -> None:
    if (given := sum(len(name) + len(value) for name, value in labels.items())) > MAX_LABEL_CHARACTERS:
        raise ValueError(f"It should have at most {MAX_LABEL_CHARACTERS} characters in all, not {given}")


Labels = Annotated[Mapping[ShortText, ShortText], MaxLen(MAX_LABELS), Checked(_short)]
