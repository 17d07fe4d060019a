"""Converts groups to JSON records and back.

    groups/{g}/group                the group without its nodes and its round
    groups/{g}/nodes/{n}            one node, without its memory-only fields
    groups/{g}/round                the newest round of the job, its members inside, without what is in memory only
    groups/{g}/rounds/{number}      the record of a round that is over
    groups/{g}/events/{number}      one line of the history

A group of which a record cannot be read is set aside as a whole: its records stay as they are, the others are served.

What a disk changed the stores notice themselves (SQLite's `integrity_check`, etcd's hashes), and base.py says when the
form of records has a new version.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any
from urllib.parse import quote, unquote

from hetrdzv.core.invariants import InvariantError
from hetrdzv.core.model import Group, Node, Round, changed_nodes
from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import InvalidSpec, StorageError
from hetrdzv.protocol.replies import Event
from hetrdzv.protocol.rounds import RoundRecord
from hetrdzv.storage.base import RecordChanges

_FIELDS_NOT_STORED: Mapping[type, AbstractSet[str]] = {
    Group: {"nodes", "round", "records"},  # each has a record of its own
    Node: {"disconnected_at", "stop_acked_at"},
    Round: {"stall", "moved_at"},
    RoundRecord: frozenset(),
    Event: frozenset(),
}
"""The fields of each kind of record that are not in it."""

RECORD_TYPES = {"nodes": Node, "round": Round, "rounds": RoundRecord, "group": Group, "events": Event}
"""What the records below a group's prefix are."""

_STORED_FIELD_GETTERS = {
    kind: attrgetter(*(f.name for f in fields(kind) if f.name not in without))
    for kind, without in _FIELDS_NOT_STORED.items()
}


@dataclass(frozen=True)
class QuarantinedGroup:
    """A group that is set aside, since it cannot be served: why, in a clause, and the keys of all its records."""

    why: str
    keys: frozenset[str]


@dataclass
class RestoredStore:
    """What a store holds, by group id: the groups that can be served, with their events in order, and the others."""

    groups: dict[str, Group] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=dict)
    quarantined: dict[str, QuarantinedGroup] = field(default_factory=dict)


# -- writing ---------------------------------------------------------------------------------------------


def group_prefix(group_id: str) -> str:
    """The prefix of all keys of a group, and of no other group's."""
    return f"groups/{quote(group_id, safe='')}/"


def event_key(group_id: str, number: int) -> str:
    """The key of an event; the keys of a group's events sort like their numbers."""
    return f"{group_prefix(group_id)}events/{number:012d}"


def make_record(part: object) -> bytes:
    """The record of a group, node, round or event, without what is not stored of it."""
    return codec.to_json(part, nulls=True, without=_FIELDS_NOT_STORED[type(part)])


def make_group_changes(old: Group | None, new: Group | None) -> RecordChanges:
    """What turns a stored `old` into a stored `new`. Whoever removes a group also removes its events."""
    known, present = (group.nodes if group is not None else {} for group in (old, new))
    changed = changed_nodes(old, new) if new is not None else ()
    nodes = {node.node_id for node in changed} | (known.keys() - present.keys())
    with_rounds = old is None or new is None or old.records is not new.records
    before, after = _parts_by_key(old, nodes, with_rounds), _parts_by_key(new, nodes, with_rounds)
    puts = {
        key: make_record(part)
        for key, part in after.items()
        if key not in before or _stored_fields(before[key]) != _stored_fields(part)
    }
    return puts | dict.fromkeys(before.keys() - after.keys())


def _parts_by_key(group: Group | None, node_ids: Iterable[str], with_rounds: bool) -> dict[str, object]:
    """What has a record of its own in a group, by key: of its nodes these, the rounds that are over if asked for."""
    if group is None:
        return {}
    prefix = group_prefix(group.group_id)
    parts: dict[str, object] = {f"{prefix}group": group}
    if group.round is not None:
        parts[f"{prefix}round"] = group.round
    for record in group.records if with_rounds else ():
        parts[f"{prefix}rounds/{record.number:012d}"] = record
    for node_id in node_ids:
        if node_id in group.nodes:
            parts[f"{prefix}nodes/{quote(node_id, safe='')}"] = group.nodes[node_id]
    return parts


def _stored_fields(part: object) -> object:
    return _STORED_FIELD_GETTERS[type(part)](part)


# -- reading ---------------------------------------------------------------------------------------------


def restore_groups(
    records: Mapping[str, bytes], check: Callable[[Group], None] = lambda group: None
) -> RestoredStore:
    """The groups in a store. One that cannot be read, or that `check` finds impossible, is set aside.

    Nodes come in the order in which they joined. Events without a group belonged to a deleted one and are skipped.

    Raises:
        StorageError: a record belongs to no group; says which.
    """
    by_group: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
    for key, record in records.items():
        match key.split("/", 2):
            case ["groups", name, _]:
                by_group[unquote(name)][key] = record
            case _:
                raise StorageError(
                    f"the store has a record {key}, which no hetserver wrote: restore a backup of the store, "
                    f"or name another store with --store"
                )
    found = RestoredStore()
    for group_id, own in by_group.items():
        try:
            group, events = _assemble_group(group_id, own)
            if group is not None:
                check(group)
                found.groups[group_id], found.events[group_id] = group, events
        except InvariantError as error:
            found.quarantined[group_id] = QuarantinedGroup(error.wrong, frozenset(own))
    return found


def _assemble_group(group_id: str, records: Mapping[str, bytes]) -> tuple[Group | None, list[Event]]:
    """A group and its events from their records; no group if only events of it are left."""
    found: dict[str, dict[str, Any]] = {part: {} for part in RECORD_TYPES}

    def malformed(key: str, why: object) -> InvariantError:
        return InvariantError(group_id, f"record {key} is malformed ({why})")

    for key, record in records.items():
        part, *name = key.split("/")[2:]
        if part not in RECORD_TYPES or len(name) != part.endswith("s"):
            raise malformed(key, "this hetserver does not know such a key")
        try:
            found[part][unquote("".join(name))] = codec.parse_json(
                RECORD_TYPES[part], record, unknown="ignore"
            )
        except (codec.MalformedJson, InvalidSpec) as error:
            raise malformed(key, error) from error
    by_number = attrgetter("number")
    rounds, events = (sorted(found[part].values(), key=by_number) for part in ("rounds", "events"))
    group: Group | None = found["group"].get("")
    if group is None and not (found["round"] or found["nodes"] or rounds):
        return None, events
    if group is None:
        raise malformed(
            f"{group_prefix(group_id)}group", "it is missing, but other records of the group exist"
        )
    if group.group_id != group_id:
        raise malformed(f"{group_prefix(group_id)}group", f"it is about group '{group.group_id}'")
    in_order = sorted(found["nodes"].items(), key=lambda item: (item[1].joined_at, item[0]))
    return replace(group, nodes=dict(in_order), round=found["round"].get(""), records=tuple(rounds)), events
