"""How many bytes are stored of each group."""

from collections.abc import Iterable, Mapping

from hetrdzv.storage.records import group_prefix

_GROUP_BEGINS = len("groups/")


class Sizes:
    """The sizes of all records, added up by group (bytes)."""

    def __init__(self) -> None:
        self._records: dict[str, int] = {}
        self._groups: dict[str, int] = {}

    def of(self, group_id: str) -> int:
        """What is stored of a group."""
        return self._groups.get(group_prefix(group_id), 0)

    def changed(self, puts: Mapping[str, bytes], deletes: Iterable[str]) -> None:
        """Records were committed; a key in both is gone."""
        for key, record in puts.items():
            self._add(key, len(record) - self._records.get(key, 0))
            self._records[key] = len(record)
        for key in deletes:
            self._add(key, -self._records.pop(key, 0))

    def clear(self) -> None:
        """The store is read again."""
        self._records.clear()
        self._groups.clear()

    def _add(self, key: str, size: int) -> None:
        prefix = key[: key.index("/", _GROUP_BEGINS) + 1]
        self._groups[prefix] = self._groups.get(prefix, 0) + size
        if not self._groups[prefix]:
            del self._groups[prefix]
