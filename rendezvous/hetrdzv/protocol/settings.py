"""The settings of a group: each with its default, bounds and help in one place.

To add a setting, add a field to `GroupSpec`. The wire model, the flags of `hetagent` and `hetctl create`, and the
bounds in the OpenAPI document follow from it; docs/groups.md is checked against it.
"""

# ruff: noqa: RUF009 - `_flag_setting` makes dataclass fields

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, get_type_hints

from annotated_types import Ge, Le, MaxLen
from pydantic import AfterValidator, Field, ValidationError

from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import InvalidSpec, SettingDifference
from hetrdzv.protocol.texts.ids import is_id
from hetrdzv.protocol.texts.phrasing import clip_text


class OnJoin(StrEnum):
    """What a joiner does to a running group: make it restart with one node more, or wait as a spare."""

    RESTART = "restart"
    SPARE = "spare"


DAY_S = 86_400

MAX_SLOTS, MAX_NODES = 1024, 100_000
"""How many workers a node may offer at most, and how many nodes a round may have."""

MAX_WORLD_SIZE = MAX_NODES * MAX_SLOTS

UNLIMITED_RESTARTS = 1_000_000
"""A `max_restarts` that no job reaches, for agents that count restarts themselves (torch's). Texts leave it out."""


MAX_COMMAND_CHARACTERS = 131_072
"""How many characters a group's command may have in all; one word of a program's arguments may have so many bytes."""


MAX_RANK_ORDER_LABELS = 8
"""How many labels `topology` takes: nodes are compared by each of them."""


@lru_cache(maxsize=32)
def parse_rank_order(text: str) -> tuple[str, ...]:
    """The labels that a value of `rank_order` names, the widest first; none: ranks are sticky. Else a ValueError."""
    if text == "sticky":
        return ()
    kind, _, rest = text.partition(":")
    labels = tuple(rest.split(","))
    if kind != "topology" or not all(labels):
        raise ValueError("must be sticky or topology:LABEL[,LABEL]")
    if len(set(labels)) < len(labels):
        raise ValueError("names a label twice")
    if len(labels) > MAX_RANK_ORDER_LABELS:
        raise ValueError(f"names {len(labels)} labels, but may name {MAX_RANK_ORDER_LABELS}")
    return labels


def check_rank_order(text: str) -> str:
    """The value, if `rank_order` can have it; else a ValueError."""
    parse_rank_order(text)
    return text


def check_master_rule(text: str) -> str:
    """The value, if `master` can have it; else a ValueError."""
    label, equals, _ = text.partition("=")
    if not (label if equals else is_id(text)):
        raise ValueError("must be LABEL=VALUE or a node id")
    return text


def allows_master(rule: str, node_id: str, labels: Mapping[str, str]) -> bool:
    """Whether a value of `master` allows a node with these labels to be master."""
    label, equals, value = rule.partition("=")
    return labels.get(label) == value if equals else node_id == rule


def check_unit_label(text: str) -> str:
    """The value, if `unit` can have it; else a ValueError."""
    if not text or "=" in text or "," in text:
        raise ValueError("must be the name of one label, such as rack")
    return text


def check_command(words: tuple[str, ...]) -> tuple[str, ...]:
    """The value, if `command` can have it; else a ValueError."""
    if not words:
        raise ValueError("it is empty: name a script, for example: -- train.py --lr 0.1")
    if sum(map(len, words)) > MAX_COMMAND_CHARACTERS:
        raise ValueError(f"A command should have at most {MAX_COMMAND_CHARACTERS} characters in all")
    return words


_Text = Annotated[str, MaxLen(16_384)]
_Nodes = Annotated[int, Ge(1), Le(MAX_NODES)]
_WorldSize = Annotated[int, Ge(1), Le(MAX_WORLD_SIZE)]
_UpToADay = Annotated[float, Ge(0), Le(DAY_S)]


def _flag_setting(default: Any, help: str, metavar: str = "S") -> Any:  # noqa: A002 - argparse's and click's own word
    """A setting with a flag of its own."""
    return field(default=default, metadata={"help": help, "metavar": metavar})


@dataclass(frozen=True, kw_only=True)
class GroupSpec:
    """What a group was asked to be. JSON, flags and `PUT /v1/groups/{id}` share the names; times are in seconds.

    Each value is checked where it comes in, see `Setting.read` and `SpecFields`; here, that none contradicts another.
    """

    min_nodes: _Nodes = 1
    max_nodes: _Nodes | None = None
    min_world_size: _WorldSize | None = None
    max_world_size: _WorldSize | None = None
    world_size_multiple: Annotated[int, Ge(1), Le(100_000)] = _flag_setting(
        1, "The world size is a multiple of this; nodes that do not fit are spares.", "N"
    )
    max_restarts: Annotated[int, Ge(0), Le(UNLIMITED_RESTARTS)] = 3
    join_timeout_s: Annotated[float, Ge(0.1), Le(30 * DAY_S)] = _flag_setting(
        600.0, "Seconds until the group fails if its nodes do not come together."
    )
    last_call_s: _UpToADay = _flag_setting(10.0, "Seconds a round waits for more nodes once it has enough.")
    replace_wait_s: _UpToADay = _flag_setting(
        0.0, "Seconds to wait for a replacement before the group shrinks after a loss."
    )
    stop_timeout_s: _UpToADay = _flag_setting(
        30.0, "Seconds between SIGTERM and SIGKILL when workers are stopped."
    )
    notice_s: _UpToADay = _flag_setting(
        0.0,
        "Seconds that workers have to save before a planned stop (HET_NOTICE_FILE); 0: they are not told.",
    )
    lease_s: Annotated[float, Ge(0.5), Le(3_600)] = _flag_setting(
        5.0, "Seconds without a heartbeat after which a node is lost."
    )
    max_disconnect_s: Annotated[float, Ge(0.5), Le(30 * DAY_S)] = _flag_setting(
        600.0, "Seconds without any server after which an agent stops its workers."
    )
    no_restart_on: Annotated[
        tuple[Annotated[int, Ge(1), Le(255)], ...], MaxLen(255), Field(fail_fast=True)
    ] = _flag_setting((), "Exit codes of a worker after which the job fails at once, as in 2,64.", "N[,N...]")
    restart_wait_s: _UpToADay = _flag_setting(
        60.0, "Seconds that restarts in quick succession wait at most; 0: they do not wait."
    )
    hang_timeout_s: Annotated[float, Ge(1), Le(30 * DAY_S)] | None = _flag_setting(
        None, "Seconds for which workers may wait for another one before that ends the round as a failure."
    )
    growth_pause_s: _UpToADay = _flag_setting(
        0.0, "Seconds that a round runs at least before nodes that join restart the job."
    )
    on_join: OnJoin = _flag_setting(
        OnJoin.RESTART,
        "What a node that joins a running group does: restart the job, or wait as a spare.",
        "",
    )
    rank_order: Annotated[_Text, AfterValidator(check_rank_order)] = _flag_setting(
        "sticky",
        "How ranks are ordered: sticky, or topology:LABEL[,LABEL] (nodes of one label value side by side).",
        "ORDER",
    )
    master: Annotated[_Text, AfterValidator(check_master_rule)] | None = _flag_setting(
        None, "Who may be master: the nodes with a label of this value, or one node id.", "LABEL=VALUE|ID"
    )
    unit: Annotated[_Text, AfterValidator(check_unit_label)] | None = _flag_setting(
        None,
        "Nodes with the same value of this label are used all together or not at all, as in rack.",
        "LABEL",
    )
    command: (
        Annotated[tuple[_Text, ...], MaxLen(1024), Field(fail_fast=True), AfterValidator(check_command)]
        | None
    ) = None

    def __post_init__(self) -> None:
        if wrong := _find_contradiction(self):
            field, text = wrong
            raise InvalidSpec(f"{field} is {text}", field)

    @property
    def has_bounds(self) -> bool:
        """Whether a number of nodes, or of slots in all, was given."""
        given = (self.max_nodes, self.min_world_size, self.max_world_size)
        return self.min_nodes > 1 or any(bound is not None for bound in given)

    @property
    def counts_slots(self) -> bool:
        """Whether nodes are chosen by their slots: not every world size is allowed, or not every set of nodes."""
        asked = (self.min_world_size, self.max_world_size, self.unit)
        return self.world_size_multiple > 1 or any(bound is not None for bound in asked)


def _find_contradiction(spec: GroupSpec) -> tuple[str, str] | None:
    """Which bound contradicts another one, its value, and why; None: none does."""
    least, most, multiple = spec.min_world_size or 1, spec.max_world_size, spec.world_size_multiple
    if spec.max_nodes is not None and spec.max_nodes < spec.min_nodes:
        return "max_nodes", f"{spec.max_nodes}, below min_nodes, which is {spec.min_nodes}"
    if spec.max_nodes is not None and spec.max_nodes * MAX_SLOTS < least:
        text = f"{least}, but max_nodes is {spec.max_nodes}, and a node has at most {MAX_SLOTS} slots"
        return "min_world_size", text
    if most is None:
        return None
    if most < least:
        return "max_world_size", f"{most}, below min_world_size, which is {least}"
    if most < spec.min_nodes:
        text = f"{spec.min_nodes}, but max_world_size is {most}, and a node has at least one slot"
        return "min_nodes", text
    below = most - most % multiple
    if below >= least:
        return None
    if below == 0:
        return "world_size_multiple", f"{multiple}, but max_world_size is {most}"
    text = (
        f"{multiple}, but from {least} (min_world_size) to {most} (max_world_size) there is no multiple of it"
    )
    advice = f"lower min_world_size to {below}, or raise max_world_size to {below + multiple}"
    return "world_size_multiple", f"{text}: {advice}"


@dataclass(frozen=True)
class Setting:
    """One setting of a group: its type with its bounds, its default, and its flag if it has help."""

    name: str
    kind: Any
    default: Any
    help: str = ""
    metavar: str = "N"

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of an enum; empty for others."""
        return tuple(one.value for one in OnJoin) if self.kind is OnJoin else ()

    def read(self, text: str) -> object:
        """The value that a person has typed, or a ValueError."""
        given = text.split(",") if isinstance(self.default, tuple) else text
        try:
            return codec.type_adapter(self.kind).validate_python(given)
        except ValidationError as error:
            raise ValueError(f"{text!r}: {next(codec.make_field_errors(error)).text}") from None


_SETTING_TYPES = get_type_hints(GroupSpec, include_extras=True)

SETTINGS: Mapping[str, Setting] = {
    one.name: Setting(one.name, _SETTING_TYPES[one.name], one.default, **one.metadata)
    for one in fields(GroupSpec)
}
"""Every setting of a group, by name."""

DEFAULT_SPEC = GroupSpec()
"""The spec of a group for which nothing was given."""


def find_fixed_differences(
    spec: GroupSpec, news: Mapping[str, Any], fixed: AbstractSet[str]
) -> tuple[SettingDifference, ...]:
    """The differences to settings that are fixed. A command may always be added where there is none."""
    return tuple(
        SettingDifference(name, setting_text(getattr(spec, name)), setting_text(value))
        for name, value in news.items()
        if name in fixed and not (name == "command" and spec.command is None)
    )


def setting_text(value: object) -> str:
    """The value of a setting as a person would give it; a command is quoted, and clipped."""
    match value:
        case None | []:
            return "none"
        case [int(), *_]:
            return ",".join(map(str, value))
        case tuple() | list():
            return repr(clip_text(" ".join(map(str, value))))
        case float():
            return f"{value:g}"
        case _:
            return clip_text(str(value))
