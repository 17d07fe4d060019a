"""The settings of a group: each with its default, bounds and help in one place.

To add a setting, add a field to `GroupSpec`. The wire model, the flags of `hetagent` and `hetctl create`, and the
bounds in the OpenAPI document follow from it; docs/groups.md is checked against it.
"""

# ruff: noqa: RUF009 - `_setting` makes dataclass fields

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from hetrdzv.protocol.errors import Difference, InvalidSpec
from hetrdzv.protocol.texts.rank_order import (
    clipped_value,
    master_rule,
    order_labels,
    unit_label,
)


class OnJoin(StrEnum):
    """What a joiner does to a running group: make it restart with one node more, or wait as a spare."""

    RESTART = "restart"
    SPARE = "spare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a group: type, default, bounds and help."""

    name: str
    kind: type
    default: Any
    least: float | None
    most: float | None
    optional: bool
    help: str
    metavar: str = ""
    reads: Callable[[str], object] = str

    @property
    def has_flag(self) -> bool:
        """Whether `hetagent` and `hetctl create` have a flag of this name (`--lease-s`)."""
        return bool(self.help)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of an enum; empty for others."""
        return tuple(choice.value for choice in self.kind) if issubclass(self.kind, StrEnum) else ()

    @property
    def shown_default(self) -> str:
        """The default as a flag takes it, or `none`."""
        return _shown(self.default)

    def check(self, value: Any) -> None:
        """Raise unless the value is of the right kind and within bounds.

        Raises:
            InvalidSpec: names the setting, the value and the bounds.
        """
        if self.kind is str and not (value is None and self.optional):
            self._check_text(value)
            return
        if self.least is None or (value is None and self.optional):
            return
        if self.kind is tuple:
            for number in value:
                replace(self, kind=int).check(number)
            return
        if isinstance(value, bool) or not isinstance(value, int if self.kind is int else (int, float)):
            what = "a whole number" if self.kind is int else "a number"
            text = f"{self.name} is {value!r}, but must be {what} between {self.least} and {self.most}"
            raise InvalidSpec(text, self.name)
        if not self.least <= value <= (self.most or 0):
            text = f"{self.name} is {value}, but must be between {self.least} and {self.most}"
            raise InvalidSpec(text, self.name)

    def _check_text(self, value: Any) -> None:
        if not isinstance(value, str):
            raise InvalidSpec(f"{self.name} is {value!r}, but must be text", self.name)
        try:
            self.reads(value)
        except ValueError as error:
            raise InvalidSpec(f"{self.name} {error}", self.name) from None


def _setting(
    kind: type,
    default: Any,
    least: float | None = None,
    most: float | None = None,
    *,
    optional: bool = False,
    help: str = "",  # noqa: A002 - argparse's and click's own word
    **more: Any,
) -> Any:
    return field(
        default=default,
        metadata={"kind": kind, "least": least, "most": most, "optional": optional, "help": help, **more},
    )


METAVARS: Mapping[type, str] = {float: "S", int: "N", tuple: "N[,N...]"}
"""What a flag takes, by the kind of its setting."""

DAY_S = 86_400

MAX_SLOTS = 1024
"""How many workers a node may offer at most."""

MAX_NODES = 100_000
"""How many nodes a round may have at most."""

MAX_WORLD_SIZE = MAX_NODES * MAX_SLOTS
"""How many workers a round may have at most."""

UNLIMITED_RESTARTS = 1_000_000
"""A `max_restarts` that no job reaches, for agents that count restarts themselves (torch's). Texts leave it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """What a group was asked to be. JSON, flags and `PUT /v1/groups/{id}` share the names; times are in seconds.

    Raises:
        InvalidSpec: a value is out of range, or bounds contradict each other.
    """

    min_nodes: int = _setting(int, 1, 1, MAX_NODES)
    max_nodes: int | None = _setting(int, None, 1, MAX_NODES, optional=True)
    min_world_size: int | None = _setting(int, None, 1, MAX_WORLD_SIZE, optional=True)
    max_world_size: int | None = _setting(int, None, 1, MAX_WORLD_SIZE, optional=True)
    world_size_multiple: int = _setting(
        int, 1, 1, 100_000, help="The world size is a multiple of this; nodes that do not fit are spares."
    )
    max_restarts: int = _setting(int, 3, 0, UNLIMITED_RESTARTS)
    join_timeout_s: float = _setting(
        float, 600.0, 0.1, 30 * DAY_S, help="Seconds until the group fails if its nodes do not come together."
    )
    last_call_s: float = _setting(
        float, 10.0, 0, DAY_S, help="Seconds a round waits for more nodes once it has enough."
    )
    replace_wait_s: float = _setting(
        float, 0.0, 0, DAY_S, help="Seconds to wait for a replacement before the group shrinks after a loss."
    )
    stop_timeout_s: float = _setting(
        float, 30.0, 0, DAY_S, help="Seconds between SIGTERM and SIGKILL when workers are stopped."
    )
    notice_s: float = _setting(
        float,
        0.0,
        0,
        DAY_S,
        help="Seconds that workers have to save before a planned stop (HET_NOTICE_FILE); 0: they are not told.",
    )
    lease_s: float = _setting(
        float, 5.0, 0.5, 3_600, help="Seconds without a heartbeat after which a node is lost."
    )
    max_disconnect_s: float = _setting(
        float,
        600.0,
        0.5,
        30 * DAY_S,
        help="Seconds without any server after which an agent stops its workers.",
    )
    no_restart_on: tuple[int, ...] = _setting(
        tuple, (), 1, 255, help="Exit codes of a worker after which the job fails at once, as in 2,64."
    )
    restart_wait_s: float = _setting(
        float,
        60.0,
        0,
        DAY_S,
        help="Seconds that restarts in quick succession wait at most; 0: they do not wait.",
    )
    hang_timeout_s: float | None = _setting(
        float,
        None,
        1,
        30 * DAY_S,
        optional=True,
        help="Seconds for which workers may wait for another one before that ends the round as a failure.",
    )
    growth_pause_s: float = _setting(
        float,
        0.0,
        0,
        DAY_S,
        help="Seconds that a round runs at least before nodes that join restart the job.",
    )
    on_join: OnJoin = _setting(
        OnJoin,
        OnJoin.RESTART,
        help="What a node that joins a running group does: restart the job, or wait as a spare.",
    )
    rank_order: str = _setting(
        str,
        "sticky",
        help="How ranks are ordered: sticky, or topology:LABEL[,LABEL] (nodes of one label value side by side).",
        metavar="ORDER",
        reads=order_labels,
    )
    master: str | None = _setting(
        str,
        None,
        optional=True,
        help="Who may be master: the nodes with a label of this value, or one node id.",
        metavar="LABEL=VALUE|ID",
        reads=master_rule,
    )
    unit: str | None = _setting(
        str,
        None,
        optional=True,
        help="Nodes with the same value of this label are used all together or not at all, as in rack.",
        metavar="LABEL",
        reads=unit_label,
    )
    command: tuple[str, ...] | None = _setting(tuple, None, optional=True)

    def __post_init__(self) -> None:
        for setting in SETTINGS.values():
            setting.check(getattr(self, setting.name))
        if wrong := _contradiction(self):
            field, text = wrong
            raise InvalidSpec(f"{field} is {text}", field)
        if self.command is not None and not self.command:
            raise InvalidSpec("command is empty: name a script, for example: -- train.py --lr 0.1", "command")

    @property
    def bounded(self) -> bool:
        """Whether a number of nodes, or of slots in all, was given."""
        given = (self.max_nodes, self.min_world_size, self.max_world_size)
        return self.min_nodes > 1 or any(bound is not None for bound in given)

    @property
    def sized(self) -> bool:
        """Whether nodes are chosen by their slots: not every world size is allowed, or not every set of nodes."""
        asked = (self.min_world_size, self.max_world_size, self.unit)
        return self.world_size_multiple > 1 or any(bound is not None for bound in asked)


def _contradiction(spec: GroupSpec) -> tuple[str, str] | None:
    """Which bound contradicts another one, and its value, why, and what to do about it; None: none does."""
    least, most, multiple = spec.min_world_size or 1, spec.max_world_size, spec.world_size_multiple
    if spec.max_nodes is not None and spec.max_nodes < spec.min_nodes:
        text = f"{spec.max_nodes}, below min_nodes, which is {spec.min_nodes}"
        return "max_nodes", f"{text}: raise max_nodes or lower min_nodes"
    if spec.max_nodes is not None and spec.max_nodes * MAX_SLOTS < least:
        text = f"{least}, but max_nodes is {spec.max_nodes}, and a node has at most {MAX_SLOTS} slots"
        return "min_world_size", f"{text}: raise max_nodes or lower min_world_size"
    if most is None:
        return None
    if most < least:
        text = f"{most}, below min_world_size, which is {least}"
        return "max_world_size", f"{text}: raise max_world_size or lower min_world_size"
    if most < spec.min_nodes:
        text = f"{spec.min_nodes}, but max_world_size is {most}, and a node has at least one slot"
        return "min_nodes", f"{text}: raise max_world_size or lower min_nodes"
    below = most - most % multiple
    if below >= least:
        return None
    if below == 0:
        text = f"{multiple}, but max_world_size is {most}: raise max_world_size to {multiple} or more"
        return "world_size_multiple", f"{text}, or lower world_size_multiple"
    text = (
        f"{multiple}, but from {least} (min_world_size) to {most} (max_world_size) there is no multiple of it"
    )
    advice = f"lower min_world_size to {below}, or raise max_world_size to {below + multiple}"
    return "world_size_multiple", f"{text}: {advice}"


SETTINGS: Mapping[str, Setting] = {
    setting.name: Setting(name=setting.name, default=setting.default, **setting.metadata)
    for setting in fields(GroupSpec)
}
"""Every setting of a group, by name."""

DEFAULTS = GroupSpec()
"""The spec of a group for which nothing was given."""


def news_in(spec: GroupSpec, given: Mapping[str, object]) -> Mapping[str, Any]:
    """Those of the given settings that a spec has with another value.

    Raises:
        InvalidSpec: a setting that does not exist, or a value that it cannot have.
    """
    values = ((name, _value(name, value)) for name, value in given.items())
    return {name: value for name, value in values if value != getattr(spec, name)}


def differences(spec: GroupSpec, news: Mapping[str, Any], fixed: AbstractSet[str]) -> tuple[Difference, ...]:
    """The differences to settings that are fixed. A command may always be added where there is none."""
    return tuple(
        Difference(name, _shown(getattr(spec, name)), _shown(value))
        for name, value in news.items()
        if name in fixed and not (name == "command" and spec.command is None)
    )


def _value(name: str, value: object) -> object:
    if name not in SETTINGS:
        raise InvalidSpec(f"a group has no field '{name}'; its fields are {', '.join(SETTINGS)}")
    kind = SETTINGS[name].kind
    if kind is tuple and isinstance(value, list | tuple):
        return tuple(value) if SETTINGS[name].least is not None else tuple(str(word) for word in value)
    if issubclass(kind, StrEnum):
        try:
            return kind(str(value))
        except ValueError:
            raise InvalidSpec(f"{name} is {_shown(value)}, but must be {' or '.join(kind)}", name) from None
    return value


def _shown(value: object) -> str:
    match value:
        case None | ():
            return "none"
        case tuple() if isinstance(value[0], int):
            return ",".join(map(str, value))
        case tuple():
            return repr(clipped_value(" ".join(str(word) for word in value)))
        case float():
            return f"{value:g}"
        case _:
            return clipped_value(str(value))
