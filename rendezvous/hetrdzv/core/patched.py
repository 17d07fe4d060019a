"""A mapping of which a copy with one more change is cheap, however large it is.

The nodes of a group are one: a thousand joins make a thousand versions of it.
"""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, TypeVar

V = TypeVar("V")

PATCHES = 128
"""How many changes are kept beside the mapping that they change: each copy copies them."""


class Patched(Mapping[str, V]):
    """A frozen mapping: another one and what differs from it. Keys stay in the order in which they came.

    Args:
        whole: must not change any more.
    """

    __slots__ = ("_parts",)

    def __init__(self, whole: Mapping[str, V]) -> None:
        # what is changed, its changes, how many of them are new keys; one attribute, since threads read it, too
        self._parts: tuple[Mapping[str, V], dict[str, V], int] = (whole, {}, 0)

    def with_item(self, key: str, value: V) -> "Patched[V]":
        """A copy with one item put in or replaced."""
        if len(self._parts[1]) >= PATCHES:
            self.whole()
        whole, patches, added = self._parts
        made = Patched(whole)
        new = key not in whole and key not in patches
        made._parts = (whole, {**patches, key: value}, added + new)
        return made

    def whole(self) -> Mapping[str, V]:
        """All of it as a plain mapping, which is made once."""
        whole, patches, _ = self._parts
        if patches:
            whole = {**whole, **patches}
            self._parts = (whole, {}, 0)
        return whole

    def __getitem__(self, key: str) -> V:
        whole, patches, _ = self._parts
        return patches[key] if key in patches else whole[key]

    def get(self, key: str, default: Any = None) -> Any:
        whole, patches, _ = self._parts
        return patches[key] if key in patches else whole.get(key, default)

    def __contains__(self, key: object) -> bool:
        whole, patches, _ = self._parts
        return key in patches or key in whole

    def __len__(self) -> int:
        whole, _, added = self._parts
        return len(whole) + added

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole())

    def keys(self) -> KeysView[str]:
        return self.whole().keys()

    def values(self) -> ValuesView[V]:
        return self.whole().values()

    def items(self) -> ItemsView[str, V]:
        return self.whole().items()

    def __repr__(self) -> str:
        return repr(self.whole())


def differing(old: Mapping[str, V], new: Mapping[str, V]) -> list[V]:
    """The items of a mapping that another one does not have, or not as the same object."""
    return [item for key, item in new.items() if old.get(key) is not item]
