"""What a node says when it joins, and the settings of a group that come with that or with `PUT`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any

from annotated_types import Le, MaxLen, MinLen

from hetrdzv.protocol.bounds import (
    MAX_NOT_READY,
    UNSET,
    AtMost,
    Body,
    Checked,
    Count,
    Documented,
    Duration,
    Given,
    Id,
    Labels,
    Port,
    Seconds,
    ShortText,
    Slots,
    Text,
    Weight,
    Whole,
)
from hetrdzv.protocol.rooms.snapshots import Holdings
from hetrdzv.protocol.settings import DAY_S, SETTINGS, Setting

MAX_COMMAND = 131_072
"""How many characters a group's command may have in all; one word of a program's arguments may have so many bytes."""


def _no_long_command(words: tuple[str, ...]) -> None:
    if sum(map(len, words)) > MAX_COMMAND:
        raise ValueError(f"A command should have at most {MAX_COMMAND} characters in all")


_TYPES: Mapping[type, Any] = {int: Whole, float: Seconds, str: Text}
_COMMAND = Annotated[tuple[Text, ...], AtMost(1024), Checked(_no_long_command), Documented(minItems=1)]


def _type_of(setting: Setting) -> Any:
    """What a body may have for a setting; whether it is in range the core checks, which says more about it."""
    kind: Any = _TYPES.get(int if setting.kind is tuple else setting.kind, setting.kind)
    if setting.least is not None:
        kind = Annotated[kind, Documented(minimum=setting.least, maximum=setting.most)]
    if setting.kind is tuple:
        kind = _COMMAND if setting.least is None else Annotated[tuple[kind, ...], AtMost(255)]
    given: Any = Given
    return given[kind | None] if setting.optional else given[kind]


class SpecFields(
    make_dataclass(  # type: ignore[misc]
        "SpecFields",
        [(name, _type_of(setting), UNSET) for name, setting in SETTINGS.items()],
        bases=(Body,),
        frozen=True,
        slots=True,
        kw_only=True,
    )
):
    """Settings of a group (protocol/settings.py). A field that is not given is not compared."""

    __slots__ = ()

    def given(self) -> dict[str, Any]:
        """The fields that were given, by name."""
        return {name: value for name in sorted(SETTINGS) if (value := getattr(self, name)) is not UNSET}


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest(Body):
    """`PUT /v1/groups/{g}/nodes/{n}`: join, or declare the node ready for the next round.

    Attributes:
        takes_notice: the node tells its workers that their round is about to end, and reports `ready_to_stop`.
        script: what its workers run, by name; other nodes of its role run the same. Empty: nobody compares it.
        weight: how fast each slot is, compared with those of other nodes: if any node of a round was given one, shares
            go by it.
        ready_within_s: how long the node may take from the end of its workers until it is ready, since its agent checks
            it first (seconds); the others wait that much longer for it.
        not_ready: why the node takes part in no round yet, though its workers are gone; empty: it is ready.
        stopped: why its agent stopped the workers of a round that would go on, as what comes after "the round, which";
            empty: it does not say.
    """

    incarnation: Id
    slots: Slots
    address: Annotated[str, MinLen(1), MaxLen(253)]
    port: Port
    script_port: Annotated[Count, Le(65_535)] = 0
    after_round: Count = 0
    role: Id = "default"
    weight: Given[Weight] = UNSET
    snapshots: Holdings | None = None
    labels: Labels = field(default_factory=dict)
    device: Labels = field(default_factory=dict)
    wants_command: bool = False
    wants_members: bool = False
    wants_daemon: bool = False
    takes_notice: bool = False
    script: ShortText = ""
    ready_within_s: Annotated[Duration, Le(DAY_S)] = 0.0
    not_ready: Annotated[str, MaxLen(MAX_NOT_READY)] = ""
    stopped: Annotated[str, MaxLen(MAX_NOT_READY)] = ""
    spec: SpecFields = SpecFields()  # noqa: RUF009 - it is frozen
