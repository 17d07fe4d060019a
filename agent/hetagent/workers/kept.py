"""What is kept of what each worker writes to our stdout and our stderr, each of which has a thread that copies."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from hetagent.workers.copier import Copier, End, Source, caught_up

STDOUT, STDERR = 1, 2


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of what one worker writes.

    Attributes:
        sources: what it writes to in place of ours, by our descriptor; those that are missing go elsewhere.
        ends: the end of what came through both.
        stderr: the end of what came through stderr.
    """

    sources: Mapping[int, Source]
    ends: End
    stderr: End

    def writer(self, console: int, given: int) -> int:
        """The descriptor that the worker gets as stdout or stderr; `given` if nothing of it is kept."""
        return self.sources[console].writer if console in self.sources else given

    def close_writers(self) -> None:
        """The worker has them."""
        for source in self.sources.values():
            source.close_writer()


class Consoles:
    """Our stdout and stderr."""

    def __init__(self) -> None:
        self._copiers = {console: Copier(console) for console in (STDOUT, STDERR)}

    def open(self, stdout: int, stderr: int) -> Kept:
        """What a worker writes to that would have these descriptors as stdout and stderr."""
        ends, own = End(), End()
        sources = {}
        for console, given, remember in ((STDOUT, stdout, [ends]), (STDERR, stderr, [ends, own])):
            if given == console or _goes_nowhere(given):
                source = self._copiers[console].open(remember, shown=given == console)
                if source is not None:
                    sources[console] = source
        return Kept(sources, ends, own)

    def catch_up(self, workers: Iterable[Kept], until: float | None = None) -> bool:
        """Wait until all that some workers have written by now is on the console.

        Args:
            until: when to stop waiting in any case (monotonic seconds).

        Returns:
            False if nobody reads the console.
        """
        by_console = {
            console: [one.sources[console] for one in workers if console in one.sources]
            for console in self._copiers
        }
        for console, copier in self._copiers.items():
            copier.await_all(by_console[console])
        return caught_up([*chain.from_iterable(by_console.values())], until)

    def hand_over(self) -> None:
        """This process ends; see `Copier.hand_over`."""
        for copier in self._copiers.values():
            copier.hand_over()


def _goes_nowhere(descriptor: int) -> bool:
    """Whether it is /dev/null, which is where torch has the ranks write that --local-ranks-filter leaves out."""
    return os.fstat(descriptor).st_rdev == os.stat(os.devnull).st_rdev
