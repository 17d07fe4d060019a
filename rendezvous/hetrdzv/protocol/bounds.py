"""The types of the fields of all that is sent or stored, each with its bounds.

Times are in seconds.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le, Lt, MaxLen
from pydantic import AfterValidator, Field

from hetrdzv.protocol.settings import MAX_SLOTS, MAX_WORLD_SIZE
from hetrdzv.protocol.texts.ids import ID_PATTERN, MAX_ID_LENGTH

MAX_BODY_BYTES = 1 << 20
"""The largest body of a request."""

MAX_JSON_VALUES = 32_768
"""How many JSON values the body of a request may have, about; a node with 1,024 workers sends half as many."""

MAX_JSON_INTEGER = 2**53
"""The largest integer that every reader of JSON understands as the same number."""

MAX_SECONDS = 1e9
"""The longest duration (seconds): about thirty years. Sums of such and of clocks keep their milliseconds."""

MIN_WEIGHT, MAX_WEIGHT = 1e-6, 1e6
"""Bounds of a node's weight: ratios and sums of weights stay far from what a float cannot hold."""

MAX_NOT_READY_CHARACTERS = 2_000
"""How long the reason may be why a node is not ready (characters)."""

MAX_LABELS, MAX_LABEL_CHARACTERS = 64, 4_096
"""How many labels, or facts of its device, a node has, and how long they may be in all: a reply may show all."""

MAX_SAMPLE_VALIDITY_S = 3600.0
"""For how long a sample may hold (seconds)."""

MAX_PROCESS_GROUPS, MAX_ALL_PROCESS_GROUPS = 32, 1024
"""How many process groups a sample may have of one worker, and of all workers of a node together."""


def max_items(items: int) -> Any:
    """A tuple has no more items than this; reading it ends at the first wrong one, or where it gets too long."""
    return Field(max_length=items, fail_fast=True)


class RequestBody:
    """Base of what requests bring: the document says that it has no other fields."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}


# -- texts -----------------------------------------------------------------------------------------------------

Id = Annotated[str, MaxLen(MAX_ID_LENGTH), Field(pattern=ID_PATTERN)]
Text = Annotated[str, MaxLen(16_384)]
ShortText = Annotated[str, MaxLen(256)]


# -- numbers ---------------------------------------------------------------------------------------------------

BoundedInt = Annotated[int, Ge(-MAX_JSON_INTEGER), Le(MAX_JSON_INTEGER)]
Count = Annotated[int, Ge(0), Le(MAX_JSON_INTEGER)]
PositiveInt = Annotated[int, Ge(1), Le(MAX_JSON_INTEGER)]
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


def _check_label_characters(labels: Mapping[str, str]) -> Mapping[str, str]:
    if (given := sum(len(name) + len(value) for name, value in labels.items())) > MAX_LABEL_CHARACTERS:
        raise ValueError(f"It should have at most {MAX_LABEL_CHARACTERS} characters in all, not {given}")
    return labels


Labels = Annotated[Mapping[ShortText, ShortText], MaxLen(MAX_LABELS), AfterValidator(_check_label_characters)]
