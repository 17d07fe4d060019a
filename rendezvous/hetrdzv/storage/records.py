"""Converts groups to versioned JSON records and back.

    groups/{g}/group                the group without its nodes and its round
    groups/{g}/nodes/{n}            one node, without its memory-only fields
    groups/{g}/round                the newest round of the job, its members inside, without what is in memory only
    groups/{g}/events/{number}      one line of the history

A group of which a record cannot be read is set aside as a whole: its records stay as they are, the others are served.

Every record carries `"v"`, the version of its form. What a disk changed the stores notice themselves (SQLite's
`integrity_check`, etcd's hashes).

Adding a field with a default needs no new version: older records get the default. Unknown fields are ignored, so
removing a field needs none either, and an older server of the same version can take over. Anything else needs a new
version, which older servers refuse to read.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import NoReturn, TypeVar
from urllib.parse import quote, unquote

from hetrdzv.core.model import Group, Node, Round
from hetrdzv.core.patched import differing
from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import InvalidSpec, StorageError
from hetrdzv.protocol.facts.events import Event

VERSION = 2
"""1 had a checksum in each record and was never released."""

_MEMORY_ONLY = {"heard_at", "cut_at", "stop_told_at"}
_MEMORY_ONLY_OF_ROUND = {"stall", "moved_at"}
_STORED_APART = {"nodes", "round"}

_stored = attrgetter(*(f.name for f in fields(Node) if f.name not in _MEMORY_ONLY))

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One event of a group's history.

    Attributes:
        number: counts the events of a group from 1.
        at: wall-clock time (ISO 8601, UTC), for people only.
    """

    number: int
    at: str
    event: Event


@dataclass(frozen=True, slots=True)
class RestoredGroup:
    """A group read from a store, with its history in order."""

    group: Group
    events: tuple[StoredEvent, ...]


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A group that is set aside, since it cannot be served.

    Attributes:
        why: what is wrong with it, in a clause.
        keys: those of all its records.
    """

    why: str
    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class Restored:
    """What a store holds, by group id: the groups that can be served, and the others."""

    groups: Mapping[str, RestoredGroup]
    quarantined: Mapping[str, Quarantined]


@dataclass(frozen=True, slots=True)
class _Versioned:
    """The part of a record that is read first."""

    v: int


def prepare() -> None:
    """Make what reads and writes records now, so that the first commit need not wait for it."""
    codec.prepare(_Versioned, Node, Round, Group, StoredEvent)


# -- keys ------------------------------------------------------------------------------------------------


def group_prefix(group_id: str) -> str:
    """The prefix of all keys of a group, and of no other group's."""
    return f"groups/{_segment(group_id)}/"


def event_prefix(group_id: str) -> str:
    """The prefix of the keys of a group's events."""
    return f"{group_prefix(group_id)}events/"


def event_key(group_id: str, number: int) -> str:
    """The key of an event; the keys of a group's events sort like their numbers."""
    return f"{event_prefix(group_id)}{number:012d}"


def _group_key(group_id: str) -> str:
    return f"{group_prefix(group_id)}group"


def _round_key(group_id: str) -> str:
    return f"{group_prefix(group_id)}round"


def _node_key(group_id: str, node_id: str) -> str:
    return f"{group_prefix(group_id)}nodes/{_segment(node_id)}"


def _segment(name: str) -> str:
    return quote(name, safe="")


# -- writing ---------------------------------------------------------------------------------------------


def changes(
    old: Group | None, new: Group | None, changed: Iterable[Node] | None = None
) -> tuple[dict[str, bytes], set[str]]:
    """The writes that turn a stored `old` into a stored `new`.

    Args:
        old: the group as it is stored; None if it is not.
        new: the group as it should be; None to remove it (the caller removes its events).
        changed: the nodes of `new` that `old` has not, or not as the same objects; None: they are looked for.

    Returns:
        records to put by key, and keys to delete.
    """
    puts: dict[str, bytes] = {}
    if new is None:
        return puts, set() if old is None else _keys(old)
    group_id = new.group_id
    if old is None or old != replace(new, nodes=old.nodes, round=old.round):
        key = _group_key(group_id)
        puts[key] = _record(new, _STORED_APART)
    if new.round is not None and (old is None or _as_stored(old.round) != _as_stored(new.round)):
        key = _round_key(group_id)
        puts[key] = _record(new.round, _MEMORY_ONLY_OF_ROUND)
    known = old.nodes if old is not None else {}
    for node in differing(known, new.nodes) if changed is None else changed:
        before = known.get(node.node_id)
        if before is None or _differs(before, node):
            key = _node_key(group_id, node.node_id)
            puts[key] = _record(node, _MEMORY_ONLY)
    return puts, set() if old is None else _vanished(old, new)


def event_record(stored: StoredEvent) -> bytes:
    """The record of an event."""
    return _record(stored)


def _keys(group: Group) -> set[str]:
    keys = {_node_key(group.group_id, node_id) for node_id in group.nodes}
    keys.add(_group_key(group.group_id))
    if group.round is not None:
        keys.add(_round_key(group.group_id))
    return keys


def _vanished(old: Group, new: Group) -> set[str]:
    keys = {_node_key(old.group_id, node_id) for node_id in old.nodes.keys() - new.nodes.keys()}
    if old.round is not None and new.round is None:
        keys.add(_round_key(old.group_id))
    return keys


def _as_stored(round_: Round | None) -> Round | None:
    """A round without what is in memory only."""
    if round_ is None or (round_.stall is None and round_.moved_at is None):
        return round_
    return replace(round_, stall=None, moved_at=None)


def _differs(before: Node, node: Node) -> bool:
    """Whether two nodes differ in a stored field."""
    return _stored(before) != _stored(node)


def _record(value: object, without: AbstractSet[str] = frozenset()) -> bytes:
    return b'{"v":%d,%b' % (VERSION, codec.write(value, nulls=True, without=without)[1:])


# -- reading ---------------------------------------------------------------------------------------------


class _OtherVersion(StorageError):
    """A record of a version that this server does not read."""


@dataclass(slots=True)
class _Parts:
    """The records of one group found so far, and what is wrong with the first that cannot be read."""

    group: Group | None = None
    round: Round | None = None
    nodes: dict[str, Node] = field(default_factory=dict)
    events: list[StoredEvent] = field(default_factory=list)
    wrong: str = ""


def restore(records: Mapping[str, bytes], now: float) -> Restored:
    """The groups in a store.

    Nodes come in the order in which they joined. Events without a group belonged to a deleted one and are skipped.

    Args:
        records: everything under `groups/`.
        now: the server's clock (seconds); every live node gets a full lease from now.

    Raises:
        StorageError: a record belongs to no group, or is of a version that this server does not read; says which.
    """
    by_group: defaultdict[str, _Parts] = defaultdict(_Parts)
    for key, record in records.items():
        match key.split("/", 2):
            case ["groups", group, place]:
                parts = by_group[unquote(group)]
            case _:
                raise StorageError(f"the store has a record {key}, which no hetserver wrote: {_WAY_OUT}")
        try:
            _read_into(parts, place, key, record)
        except _OtherVersion:
            raise
        except StorageError as error:
            parts.wrong = parts.wrong or str(error)
    groups: dict[str, RestoredGroup] = {}
    wrong: dict[str, str] = {}
    for group_id, parts in by_group.items():
        if not (parts.wrong or parts.group is not None or parts.round is not None or parts.nodes):
            continue
        try:
            groups[group_id] = RestoredGroup(_assemble(group_id, parts, now), _in_order(parts.events))
        except StorageError as error:
            wrong[group_id] = str(error)
    return Restored(groups, set_aside(wrong, records))


def set_aside(wrong: Mapping[str, str], records: Iterable[str]) -> dict[str, Quarantined]:
    """The groups that cannot be served, with the keys of their records.

    Args:
        wrong: why, by group id.
        records: the keys of all groups' records.
    """
    if not wrong:
        return {}
    keys: dict[str, set[str]] = {group_id: set() for group_id in wrong}
    for key in records:
        if (own := keys.get(unquote(key.split("/", 2)[1]))) is not None:
            own.add(key)
    return {group_id: Quarantined(why, frozenset(keys[group_id])) for group_id, why in wrong.items()}


def _read_into(parts: _Parts, place: str, key: str, record: bytes) -> None:
    match place.split("/"):
        case ["group"]:
            parts.group = _read(Group, key, record)
        case ["round"]:
            parts.round = _read(Round, key, record)
        case ["nodes", node]:
            parts.nodes[unquote(node)] = _read(Node, key, record)
        case ["events", _]:
            parts.events.append(_read(StoredEvent, key, record))
        case _:
            _malformed(key, "this hetserver does not know such a key")


def _assemble(group_id: str, parts: _Parts, now: float) -> Group:
    if parts.wrong:
        raise StorageError(parts.wrong)
    if parts.group is None:
        _malformed(_group_key(group_id), "it is missing, but other records of the group exist")
    if parts.group.group_id != group_id:
        _malformed(_group_key(group_id), f"it is about group '{parts.group.group_id}'")
    nodes = sorted(parts.nodes.items(), key=lambda item: (item[1].joined_at, item[0]))
    heard = {node_id: node if node.gone else replace(node, heard_at=now) for node_id, node in nodes}
    return replace(parts.group, nodes=heard, round=parts.round)


def _in_order(events: list[StoredEvent]) -> tuple[StoredEvent, ...]:
    return tuple(sorted(events, key=lambda stored: stored.number))


def _read(kind: type[T], key: str, record: bytes) -> T:
    try:
        version = codec.read(_Versioned, record, unknown="ignore").v
        if version > VERSION:
            raise _OtherVersion(
                f"record {key} has version {version}, but this hetserver reads at most version {VERSION}: "
                f"upgrade hetserver, or name another store with --store"
            )
        if version == 1:
            raise _OtherVersion(
                f"record {key} has version 1, which only unreleased hetservers wrote: move the store away, or name "
                f"another one with --store; jobs start over"
            )
        if version < VERSION:
            _malformed(key, f"version {version} does not exist")
        return codec.read(kind, record, unknown="ignore")
    except (codec.Malformed, InvalidSpec) as error:
        _malformed(key, str(error), error)


def _malformed(key: str, why: str, cause: Exception | None = None) -> NoReturn:
    raise StorageError(f"record {key} is malformed ({why})") from cause


_WAY_OUT = "restore a backup of the store, or name another store with --store"
