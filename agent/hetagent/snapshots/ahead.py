"""Reads what another node has with few requests, and one ahead of what is asked for."""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle

from hetagent.snapshots.folder import Place
from hetagent.snapshots.sources import Source, SourceError

BLOCK = 8 << 20
"""How much is read with one request at least; a tensor of more than that has a request of its own (bytes)."""


def blocks(places: Iterable[Place], size: int) -> list[list[Place]]:
    """Tensors of a file that lie side by side, of so many bytes together at least."""
    found: list[list[Place]] = []
    for place in sorted(places, key=lambda place: place.at):
        if not found or place.at - found[-1][0].at >= size:
            found.append([])
        found[-1].append(place)
    return found


class Ahead(Source):
    """Another node as a source, which has to be read in the order in which the tensors lie there.

    Args:
        source: that node.
        places: the tensors that will be read, all in one file.
    """

    def __init__(self, source: Source, places: Iterable[Place]) -> None:
        super().__init__(source.told, source.stamp)
        small = blocks((place for place in places if 0 < place.bytes < BLOCK), BLOCK)
        self._spans = iter([(block[0].file, block[0].at, block[-1].at + block[-1].bytes) for block in small])
        self._known = {place.at for block in small for place in block}
        self._buffers = cycle((bytearray(2 * BLOCK), bytearray(2 * BLOCK)) if small else ())
        self._start, self._block = 0, memoryview(b"")
        self._fetching = Source(source.told, source.stamp)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hetagent-ahead")
        self._next = self._fetch()

    def read_into(self, file: str, at: int, into: memoryview) -> None:
        """See `Source`.

        Raises:
            SourceError: it cannot be had, is shorter, or was to be read before.
        """
        if at not in self._known:
            super().read_into(file, at, into)
            return
        while at + into.nbytes > self._start + self._block.nbytes:
            if self._next is None:
                raise SourceError(f"node '{self.node}' has nothing more of {file}")
            self._start, self._block = self._next.result()
            self._next = self._fetch()
        if at < self._start:
            raise SourceError(f"node '{self.node}' was asked for {file} out of its order")
        into[:] = self._block[at - self._start : at - self._start + into.nbytes]

    def close(self) -> None:
        """End what is under way."""
        self._pool.shutdown(cancel_futures=True)
        self._fetching.close()
        super().close()

    def _fetch(self) -> Future[tuple[int, memoryview]] | None:
        """Begin with the next block."""
        span = next(self._spans, None)
        return self._pool.submit(self._read, *span) if span is not None else None

    def _read(self, file: str, start: int, end: int) -> tuple[int, memoryview]:
        """Fill the buffer that is not being read."""
        into = memoryview(next(self._buffers))[: end - start]
        self._fetching.read_into(file, start, into)
        return start, into
