"""The snapshots of a worker, as its script sees them."""

import atexit

from hetagent import progress
from hetagent.snapshots.copying import Who
from hetagent.snapshots.folder import Folder
from hetagent.snapshots.loading import Loader, forget_newer
from hetagent.snapshots.state import State
from hetagent.snapshots.taking import Taker


class Snapshots:
    """The snapshots of this worker; made by `hetagent.snapshots.open`.

    Args:
        folder: where they go; None: nowhere.
        asked: whether an agent asks for one when the round ends.
    """

    def __init__(self, folder: Folder | None, state: State, who: Who, *, asked: bool) -> None:
        self._folder = folder
        self._state = state
        self._taker = Taker(folder, state, who) if folder is not None else None
        self._who = who
        self._last: int | None = None
        self._asked = asked
        if self._taker is not None and asked:
            self._taker.listen()
        elif self._taker is not None:
            atexit.register(self._taker.save_now)  # nobody will ask

    def load(self) -> int | None:
        """Load the newest snapshot that is complete.

        Returns:
            after which step it was taken; None: there is none, and nothing was touched.

        Raises:
            SnapshotError: it is of another model, or cannot be read; the agent then has another one taken.
        """
        if self._folder is None or self._taker is None:
            return None
        loader = Loader(self._folder, self._who.rank)
        found = loader.find()
        forget_newer(self._folder, found.stamp if found is not None else None)
        if found is None:
            return None
        loader.load(found, self._state)
        self._taker.begins_at_loaded(found.stamp)
        self._last = found.stamp.step
        return found.stamp.step

    def step(self, step: int) -> None:
        """The state is whole: so many steps are done. Takes a snapshot if one is due, which takes about a copy.

        Args:
            step: counts up, the same on all ranks.

        Raises:
            ValueError: it does not count up.
        """
        if type(step) is not int or step < 0 or (self._last is not None and step <= self._last):
            raise ValueError(
                f"snaps.step({step!r}) after step {self._last}: steps are whole numbers that count up"
            )
        self._last = step
        progress.follow(step)
        if self._taker is not None:
            self._taker.step(step)

    def save_now(self, *, ends: bool = False) -> None:
        """Save the last step that was whole.

        Args:
            ends: the worker trains no more, and answers no more either.
        """
        if self._taker is None:
            return
        if self._asked:
            self._taker.answer(ends=ends)
        else:
            self._taker.save_now()
