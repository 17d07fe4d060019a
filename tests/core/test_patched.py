"""A mapping of which changed copies are cheap is a mapping like any other."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from hetrdzv.core.patched import PATCHES, Patched
from tests.fuzz.settings import examples

KEYS = [f"n{number}" for number in range(3 * PATCHES)]


@examples(100)
@given(
    st.lists(st.sampled_from(KEYS), unique=True),
    st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), max_size=3 * PATCHES),
)
def test_it_is_what_a_dict_would_be(before: list[str], changes: list[tuple[str, bool]]) -> None:
    plain = dict.fromkeys(before, -1)
    patched = Patched(dict(plain))
    versions = []
    for number, (key, looked_at) in enumerate(changes):
        versions.append((patched, dict(plain)))
        plain[key] = number
        patched = patched.with_item(key, number)
        if looked_at:
            assert list(patched.items()) == list(plain.items()), "keys stay in the order in which they came"
        assert len(patched) == len(plain)
        assert patched[key] == patched.get(key) == number
    for old, expected in [*versions, (patched, plain)]:
        assert len(old) == len(expected)
        assert [old.get(key, "none") for key in KEYS] == [expected.get(key, "none") for key in KEYS]
        assert [key in old for key in KEYS] == [key in expected for key in KEYS]
        assert list(old) == list(old.keys()) == list(expected)
        assert list(old.values()) == list(expected.values())
        assert old == expected
        assert repr(old) == repr(expected)


def test_a_change_copies_little_of_a_large_mapping() -> None:
    patched = Patched(dict.fromkeys(map(str, range(100_000)), 0))
    for number in range(PATCHES):
        patched = patched.with_item(str(number), 1)
    whole, patches, _ = patched._parts
    assert len(whole) == 100_000
    assert len(patches) == PATCHES
    assert sys.getsizeof(patches) < sys.getsizeof(whole) / 100
