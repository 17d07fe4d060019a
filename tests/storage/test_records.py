"""Records: a store that got every change of a group holds the group; malformed ones are named."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest

from hetrdzv.core.model import Group
from hetrdzv.protocol.errors import StorageError
from hetrdzv.protocol.reasons.events import node_joined
from hetrdzv.protocol.replies import Event
from hetrdzv.protocol.states import NodePhase
from hetrdzv.storage.records import event_key, group_prefix, make_group_changes, make_record
from tests.core.leases import without_leases
from tests.support.filled import filled
from tests.support.restored import encoded, restore, stored_records

NOW = 5_000.0
"""The clock of the server that restores (seconds)."""


class Kept:
    """A store in small: what the changes of one group made of it."""

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}

    def take(self, old: Group | None, new: Group | None) -> None:
        for key, value in make_group_changes(old, new).items():
            assert self.records.get(key) != value, "puts what is there already, or deletes what is not there"
            if value is None:
                del self.records[key]
            else:
                self.records[key] = value

    def restored(self, group_id: str) -> Group:
        return restore(self.records).groups[group_id]


def as_restored(group: Group) -> Group:
    """What a server has to find after this group: nobody is suspect, and nobody is waited for."""
    nodes = {
        node.node_id: replace(node, disconnected_at=None, stop_acked_at=None)
        for node in without_leases(group).nodes.values()
    }
    current = replace(group.round, stall=None, moved_at=None) if group.round is not None else None
    return replace(group, nodes=nodes, round=current)


def parsed_record(stored: Mapping[str, bytes], key: str) -> dict[str, object]:
    parsed: dict[str, object] = json.loads(stored[key])
    return parsed


@cache
def full() -> Group:
    """A group in which no field has its default, as a server restores it."""
    return as_restored(filled(Group))


def test_every_field_comes_back_but_what_is_in_memory_only() -> None:
    group, in_memory = full(), ["disconnected_at", "stop_acked_at"]
    node = group.nodes["gpu0"]
    kept = Kept()
    kept.take(None, filled(Group))
    assert kept.restored("g") == group
    ready = group.with_node(replace(node, phase=NodePhase.READY))
    heard = replace(ready.nodes["gpu0"], disconnected_at=2.0, stop_acked_at=1.5)
    assert make_group_changes(ready, ready.with_node(heard)) == {}
    stored = stored_records(ready.with_node(heard))
    assert not set(in_memory) & parsed_record(stored, "groups/g/nodes/gpu0").keys()
    restored = restore(stored).groups["g"].nodes["gpu0"]
    assert [getattr(restored, name) for name in in_memory] == [None, None]
    new = replace(group, round=None, nodes={}, job=3)  # the round of a job goes with it
    kept.take(group, new)
    assert kept.records.keys() == {"groups/g/group", "groups/g/rounds/000000000003"}
    assert kept.restored("g") == new


def test_groups_whose_names_begin_alike_are_apart() -> None:
    kept = Kept()
    groups = [replace(full(), group_id=group_id) for group_id in ("g", "g/nodes", "g%2Fnodes", "gg", "G")]
    for group in groups:
        kept.take(None, group)
    assert restore(kept.records).groups == {group.group_id: group for group in groups}
    for group in groups:
        own = {key for key in kept.records if key.startswith(group_prefix(group.group_id))}
        assert make_group_changes(group, None) == dict.fromkeys(own)


def stored_event(number: int) -> Event:
    reason = node_joined(f"gpu{number}", number, "10.0.0.1")
    return Event(number=number, at="2026-11-21T10:00:00.000+00:00", reason=reason)


def test_events_come_back_in_order_and_those_without_their_group_are_skipped() -> None:
    events = [stored_event(number) for number in (12, 2, 100)]
    stored = stored_records(full())
    stored |= {event_key("g", event.number): make_record(event) for event in events}
    stored |= {event_key("deleted", 1): make_record(stored_event(1))}
    found = restore(stored)
    assert found.groups.keys() == {"g"}
    assert found.events == {"g": [events[1], events[0], events[2]]}


# -- other versions ------------------------------------------------------------------------------------------

KEYS = [
    "groups/g/group",
    "groups/g/round",
    "groups/g/nodes/gpu0",
    "groups/g/events/000000000001",
    "groups/g/rounds/000000000003",
]


def all_records() -> dict[str, bytes]:
    stored = stored_records(full())
    stored[KEYS[3]] = make_record(stored_event(1))
    assert sorted(stored) == sorted(KEYS)
    return stored


def edited(key: str, **news: object) -> dict[str, bytes]:
    """All records, of which one has these fields set; `...` takes a field out."""
    stored = all_records()
    record = {**parsed_record(stored, key), **news}
    return {**stored, key: encoded({k: v for k, v in record.items() if v is not ...})}


def refusal(stored: Mapping[str, bytes]) -> str:
    with pytest.raises(StorageError) as caught:
        restore(stored)
    return str(caught.value)


@pytest.mark.parametrize("key", KEYS)
def test_a_field_that_is_not_known_is_ignored_and_one_that_is_missing_has_its_default(key: str) -> None:
    assert restore(edited(key, favourite_colour="blue")) == restore(all_records())
    node = restore(edited("groups/g/nodes/gpu0", labels=..., weight=...)).groups["g"].nodes["gpu0"]
    assert (node.labels, node.weight) == ({}, None)


@pytest.mark.parametrize(
    ("key", "news", "why"),
    [
        ("groups/g/nodes/gpu0", {"slots": "4"}, "slots: Input should be a valid integer"),
        ("groups/g/nodes/gpu0", {"address": ...}, "address: it is missing"),
        ("groups/g/group", {"spec": {"min_nodes": 3, "max_nodes": 2}}, "max_nodes is 2, below min_nodes"),
        ("groups/g/group", {"group_id": "h"}, "it is about group 'h'"),
        ("groups/g/round", {"members": [{"node_id": "gpu0"}]}, "members.0.incarnation: it is missing"),
    ],
)
def test_a_malformed_record_says_where(key: str, news: dict[str, object], why: str) -> None:
    said = refusal(edited(key, **news))
    assert f"record {key} is malformed" in said
    assert why in said


@pytest.mark.parametrize(
    ("key", "says"),
    [
        *((key, f"the store has a record {key}, which no hetserver") for key in ("group", "groups/g", "x/g/group")),
        *((key, f"record {key} is malformed (this hetserver") for key in ("groups/g/nodes", "groups/g/a/b")),
        ("groups/g/round", "record groups/g/group is malformed (it is missing, but"),
    ],
)  # fmt: skip
def test_a_record_that_belongs_nowhere_is_named(key: str, says: str) -> None:
    assert says in refusal({key: all_records().get(key, b"{}")})
