"""Converts groups to versioned JSON records and back.

    groups/{g}/group                the group without its nodes and its round
    groups/{g}/nodes/{n}            one node, without its memory-only fields
    groups/{g}/round                the newest round of the job, its members inside, without what is in memory only
    groups/{g}/rounds/{number}      the record of a round that is over
    groups/{g}/events/{number}      one line of the history

A group of which a record cannot be read is set aside as a whole: its records stay as they are, the others are served.

Every record carries `"v"`, the version of its form. What a disk changed the stores notice themselves (SQLite's
`integrity_check`, etcd's hashes).

Adding a field with a default needs no new version: older records get the default. Unknown fields are ignored, so
removing a field needs none either, and an older server of the same version can take over. Anything else needs a new
version, which older servers refuse to read.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import TypeVar
from urllib.parse import quote, unquote

from hetrdzv.core.invariants import InvariantError
from hetrdzv.core.model import Group, Node, Round, changed_nodes
from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import InvalidSpec, StorageError
from hetrdzv.protocol.pages import Event
from hetrdzv.protocol.rounds import RoundRecord

VERSION = 3

_MEMORY_ONLY = {"heard_at", "disconnected_at", "stop_acked_at"}
_MEMORY_ONLY_OF_ROUND = {"stall", "moved_at"}
_STORED_APART = {"nodes", "round", "records"}

_stored = attrgetter(*(f.name for f in fields(Node) if f.name not in _MEMORY_ONLY))

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RestoredGroup:
    """A group read from a store, with its history in order."""

    group: Group
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A group that is set aside, since it cannot be served: why, in a clause, and the keys of all its records."""

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
    codec.prepare(_Versioned, Node, Round, RoundRecord, Group, Event)


# -- keys ------------------------------------------------------------------------------------------------


def group_prefix(group_id: str) -> str:
    """The prefix of all keys of a group, and of no other group's."""
    return f"groups/{quote(group_id, safe='')}/"


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


def _record_key(group_id: str, number: int) -> str:
    return f"{group_prefix(group_id)}rounds/{number:012d}"


def _node_key(group_id: str, node_id: str) -> str:
    return f"{group_prefix(group_id)}nodes/{quote(node_id, safe='')}"


# -- writing ---------------------------------------------------------------------------------------------


def changes(
    old: Group | None, new: Group | None, changed: Iterable[Node] | None = None
) -> tuple[dict[str, bytes], set[str]]:
    """The writes that turn a stored `old` into a stored `new`: records to put by key, and keys to delete.

    `changed` are the nodes of `new` that `old` has not, or not as the same objects; None: they are looked for. Whoever
    removes a group also removes its events.
    """
    same = old is not None and new is not None and old.records is new.records
    known_rounds, rounds = ({}, {}) if same else (_rounds(old), _rounds(new))
    puts = {key: _record(record) for key, record in rounds.items() if known_rounds.get(key) != record}
    if new is not None:
        group_id, known = new.group_id, old.nodes if old is not None else {}
        if old is None or old != replace(new, nodes=old.nodes, round=old.round, records=old.records):
            puts[_group_key(group_id)] = _record(new, _STORED_APART)
        if new.round is not None and (old is None or _as_stored(old.round) != _as_stored(new.round)):
            puts[_round_key(group_id)] = _record(new.round, _MEMORY_ONLY_OF_ROUND)
        for node in changed_nodes(old, new) if changed is None else changed:
            before = known.get(node.node_id)
            if before is None or _stored(before) != _stored(node):
                puts[_node_key(group_id, node.node_id)] = _record(node, _MEMORY_ONLY)
    if old is None:
        return puts, set()
    gone = old.nodes.keys() - (new.nodes.keys() if new is not None else ())
    deletes = {_node_key(old.group_id, node_id) for node_id in gone} | (known_rounds.keys() - rounds.keys())
    if new is None:
        deletes.add(_group_key(old.group_id))
    if old.round is not None and (new is None or new.round is None):
        deletes.add(_round_key(old.group_id))
    return puts, deletes


def _rounds(group: Group | None) -> dict[str, RoundRecord]:
    """The records of rounds that are over, by key."""
    if group is None:
        return {}
    return {_record_key(group.group_id, record.number): record for record in group.records}


def event_record(event: Event) -> bytes:
    """The record of an event."""
    return _record(event)


def _as_stored(round_: Round | None) -> Round | None:
    """A round without what is in memory only."""
    if round_ is None or (round_.stall is None and round_.moved_at is None):
        return round_
    return replace(round_, stall=None, moved_at=None)


def _record(value: object, without: AbstractSet[str] = frozenset()) -> bytes:
    return b'{"v":%d,%b' % (VERSION, codec.write(value, nulls=True, without=without)[1:])


# -- reading ---------------------------------------------------------------------------------------------


class _Malformed(Exception):
    """A record cannot be read; says which and why."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"record {key} is malformed ({why})")


def restore(
    records: Mapping[str, bytes], now: float, check: Callable[[Group], None] = lambda group: None
) -> Restored:
    """The groups in a store. One that cannot be read, or that `check` finds impossible, is set aside.

    Nodes come in the order in which they joined; every live one has a full lease from now. Events without a group
    belonged to a deleted one and are skipped.

    Raises:
        StorageError: a record belongs to no group, or is of a version that this server does not read; says which.
    """
    by_group: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
    for key, record in records.items():
        match key.split("/", 2):
            case ["groups", group, _]:
                by_group[unquote(group)][key] = record
            case _:
                raise StorageError(
                    f"the store has a record {key}, which no hetserver wrote: restore a backup of the store, "
                    f"or name another store with --store"
                )
    groups: dict[str, RestoredGroup] = {}
    quarantined: dict[str, Quarantined] = {}
    for group_id, own in by_group.items():
        try:
            if (restored := _assemble(group_id, own, now)) is not None:
                check(restored.group)
                groups[group_id] = restored
        except _Malformed as error:
            quarantined[group_id] = Quarantined(str(error), frozenset(own))
        except InvariantError as error:
            quarantined[group_id] = Quarantined(error.wrong, frozenset(own))
    return Restored(groups, quarantined)


def _assemble(group_id: str, records: Mapping[str, bytes], now: float) -> RestoredGroup | None:
    """A group from its records; None if only events of it are left."""
    group: Group | None = None
    current: Round | None = None
    nodes: dict[str, Node] = {}
    rounds: list[RoundRecord] = []
    events: list[Event] = []
    for key, record in records.items():
        match key.split("/")[2:]:
            case ["group"]:
                group = _read(Group, key, record)
            case ["round"]:
                current = _read(Round, key, record)
            case ["nodes", node]:
                nodes[unquote(node)] = _read(Node, key, record)
            case ["rounds", _]:
                rounds.append(_read(RoundRecord, key, record))
            case ["events", _]:
                events.append(_read(Event, key, record))
            case _:
                raise _Malformed(key, "this hetserver does not know such a key")
    if group is None:
        if current is None and not nodes and not rounds:
            return None
        raise _Malformed(_group_key(group_id), "it is missing, but other records of the group exist")
    if group.group_id != group_id:
        raise _Malformed(_group_key(group_id), f"it is about group '{group.group_id}'")
    in_order = sorted(nodes.items(), key=lambda item: (item[1].joined_at, item[0]))
    heard = {node_id: node if node.gone else replace(node, heard_at=now) for node_id, node in in_order}
    by_number = attrgetter("number")
    whole = replace(group, nodes=heard, round=current, records=tuple(sorted(rounds, key=by_number)))
    return RestoredGroup(whole, tuple(sorted(events, key=by_number)))


def _read(kind: type[T], key: str, record: bytes) -> T:
    try:
        version = codec.read(_Versioned, record, unknown="ignore").v
        if version > VERSION:
            raise StorageError(
                f"record {key} has version {version}, but this hetserver reads at most version {VERSION}: "
                f"upgrade hetserver, or name another store with --store"
            )
        if version < VERSION:
            raise _Malformed(key, f"version {version} was never released")
        return codec.read(kind, record, unknown="ignore")
    except (codec.Malformed, InvalidSpec) as error:
        raise _Malformed(key, str(error)) from error
