"""Records: what the core makes survives a round trip; old versions are read; damaged records are named."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetrdzv.api import views
from hetrdzv.core.commands import Tick
from hetrdzv.core.directive import make_directive
from hetrdzv.core.invariants import InvariantError, check_invariants
from hetrdzv.core.model import Group
from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import Refused, StorageError
from tests.core.leases import step, without_leases
from tests.core.test_records import Trained, acts
from tests.fuzz.settings import BIG, examples
from tests.fuzz.stored import STORIES, fixture, records_of, told
from tests.storage.test_records import NOW, Kept, as_restored, full
from tests.support.restored import encoded, restore

WRITTEN: dict[str, Any] = {f"today/{make.__name__}": fixture(make()) for make in STORIES} | {
    f"{path.parent.name}/{path.stem}": json.loads(path.read_text(encoding="utf-8"))
    for path in Path(__file__).parent.parent.glob("storage/fixtures/*/*.json")
}
"""What today's code writes, and what each release wrote: none yet."""


@pytest.mark.parametrize("seed", range(1_000 if BIG else 50))
def test_whatever_happens_the_store_has_it(seed: int) -> None:
    kept, stored = Kept(), None
    story = Trained(min_nodes=2, max_nodes=2, max_restarts=2, last_call_s=1.0, lease_s=5.0, notice_s=4.0)
    for _ in acts(story, random.Random(seed)):
        group = without_leases(story.group)
        kept.take(stored, group)
        stored = group
        restored = kept.restored(story.group.group_id)
        assert restored == as_restored(story.group)
        assert told(restored, NOW) == told(as_restored(story.group), story.now)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_a_release_wrote_is_read(name: str) -> None:
    wrote = {key: record.encode() for key, record in WRITTEN[name]["records"].items()}
    restored = restore(wrote)
    (group,) = restored.groups.values()
    check_invariants(group)
    assert told(group, NOW) == WRITTEN[name]["told"]
    live_with(group)


# -- damage --------------------------------------------------------------------------------------------------


def read(stored: dict[str, bytes], key: str) -> None:
    """Read records of which one was damaged: it is named, or the group can be lived with."""
    try:
        found = restore(stored)
    except StorageError as error:
        said = str(error)
        if not said.startswith(f"record {key} is malformed"):
            raise
        return
    for group in found.groups.values():
        try:
            check_invariants(group)
        except InvariantError:
            continue  # the ledger refuses it
        live_with(group)


def live_with(group: Group) -> None:
    """What a server does with every group that it has read."""
    views.group_reply(group, NOW, lambda node: node.joined_at, {})
    for node in group.nodes.values():
        codec.to_json(make_directive(group, node, NOW))
    for seconds in (0.0, 6.0, 1e6):
        try:
            group = step(group, Tick(), NOW + seconds).group
        except Refused:
            return


RECORDS = [records_of(full(), []), *(records_of(story().group, story().events) for story in STORIES)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(stored=st.sampled_from(RECORDS), value=JSON, data=st.data())
@examples(200)
def test_a_field_that_became_something_else_is_named_or_harmless(
    stored: dict[str, bytes], value: Any, data: st.DataObject
) -> None:
    key = data.draw(st.sampled_from(sorted(stored)))
    record = json.loads(stored[key])
    place = record
    while True:
        name = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[name], dict | list) or not place[name] or data.draw(st.booleans()):
            break
        place = place[name]
    place[name] = value
    read({**stored, key: encoded(record)}, key)


@pytest.mark.parametrize(
    "record",
    [b"[" * 100_000, b'{"a":' * 100_000, b"\xef\xbb\xbf{}", b"1" * 10_000, b'"\\ud800"'],
)
def test_records_that_no_parser_takes_are_named(record: bytes) -> None:
    for key in records_of(full(), []):
        with pytest.raises(StorageError, match="record "):
            restore({**records_of(full(), []), key: record})
