"""The files of snapshots on a node: three slots with a snapshot each, and what agent and workers tell each other.

A slot has `shared.bin`, the tensors that all ranks have alike; `RANK.bin`, those of which a rank has parts;
`RANK.small`, buffers and values; and `RANK.json`, the index of a rank's part, which is written last.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from hetagent.snapshots.errors import Overtaken

FOLDER = "HET_SNAPSHOTS"
"""The variable that names the agent's folder."""

SLOTS = 3
"""How many snapshots a node has: two that may be complete, and one that is being written."""

EVERY_S = 30.0
"""How far apart snapshots are at most, unless a person says so (seconds)."""

VERSION = 1

SHARED, CLAIMS, INDEX, OWN, SMALL = "shared.bin", "claims", "{}.json", "{}.bin", "{}.small"
"""The files of a slot; see above. `claims` has a byte for each block of `shared.bin`: 1 once it is copied."""

PINNED = "pinned.json"
"""From which step on the first snapshot is written to disk."""

PLACES = "tensors", "small"
"""What an index has places of."""

ALIGNED = 64
"""Where tensors begin in a file: at multiples of so many bytes."""

DONE = b"\1"


class Stamp(NamedTuple):
    """Which snapshot: the state after a step, as the workers of a round had it. The newest is the largest."""

    round: int
    step: int

    @classmethod
    def read(cls, told: Sequence[int]) -> "Stamp":
        """From `[round, step]`."""
        return cls(step=told[1], round=told[0])

    def told(self) -> list[int]:
        """As `[round, step]`."""
        return [self.round, self.step]


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What the agent tells its workers while a round runs.

    Attributes:
        round: the round; without an agent 0.
        kept: the snapshots that are not to be overwritten: what there is if a node is lost now, as far as is known;
            then what there may be, the likeliest first.
        every_s: how far apart snapshots are at most (seconds).
        memory: how many bytes all slots together may have; None: whatever there is.
    """

    round: int = 0
    kept: tuple[Stamp, ...] = ()
    every_s: float = EVERY_S
    memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a tensor, or a rank's part of one, lies.

    Attributes:
        shape: of the whole tensor.
        offsets, lengths: which part of it this is.
        file, at, bytes: in which file of the slot.
        digest: of these bytes; empty where they are part of what has a digest.
        device: the type of the device that had it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    file: str
    at: int
    bytes: int
    digest: str = ""
    device: str = "cpu"

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Place":
        """From its form in an index."""
        lists = {name: tuple(told[name]) for name in ("shape", "offsets", "lengths")}
        return cls(**{**told, **lists})

    def told(self) -> dict[str, Any]:
        """As it is in an index."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A rank's part of a snapshot.

    Attributes:
        alike: the tensors in `shared.bin`, whoever has copied them, with their sizes (bytes).
        tensors: those that this worker has copied, and its own parts.
        small: its tensors in `RANK.small`.
        values: where the values begin in that file.
        small_bytes, small_digest: of that file.
        digests: of values that have to be the same on all ranks.
    """

    stamp: Stamp
    rank: int
    world_size: int
    sharded: bool
    alike: Mapping[str, int] = field(default_factory=dict)
    tensors: tuple[Place, ...] = ()
    small: tuple[Place, ...] = ()
    values: int = 0
    small_bytes: int = 0
    small_digest: str = ""
    digests: Mapping[str, str] = field(default_factory=dict)

    def written(self) -> bytes:
        """As it is in its file."""
        told = {name: getattr(self, name) for name in self.__slots__ if name != "stamp"}
        told |= {"v": VERSION, "round": self.stamp.round, "step": self.stamp.step}
        told |= {name: [place.told() for place in getattr(self, name)] for name in PLACES}
        return json.dumps(told).encode()

    @classmethod
    def read(cls, text: bytes) -> "Index":
        """From its file.

        Raises:
            ValueError: it is none, or of a version that is not known.
        """
        try:
            told = json.loads(text)
            if told.pop("v") != VERSION:
                raise ValueError("its version is not known: install the same hetrdzv everywhere")
            stamp = Stamp(step=told.pop("step"), round=told.pop("round"))
            places = {name: tuple(map(Place.read, told[name])) for name in PLACES}
            return cls(stamp=stamp, **{**told, **places})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no index of a snapshot ({type(error).__name__}: {error})") from None


class Slot:
    """The files of one snapshot on this node.

    Attributes:
        number: of the slot.
    """

    def __init__(self, path: Path, number: int, stamp: Stamp) -> None:
        self.path = path
        self.number = number
        self.stamp = stamp

    def indexes(self) -> dict[int, Path]:
        """The indexes that are there, by rank."""
        return {int(path.stem): path for path in self.path.glob("*.json") if path.stem.isdecimal()}

    def empty(self) -> None:
        """Forget what it holds; the files stay, since their memory is used again."""
        for path in self.indexes().values():
            path.unlink(missing_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        (self.path / CLAIMS).write_bytes(b"")


class Need(IntEnum):
    """How much a snapshot is needed."""

    LITTLE = 1
    """Newer ones are here."""
    NEWEST = 2
    KEPT = 3
    """The agent says so, see `Control`: the less, the later it says it."""
    BESIDE = 4
    """Others may have ended their round with it, a step before or after."""
    SAFE = 5
    """It outlives any node, or is being written to disk."""


class Folder:
    """All files of a node.

    Args:
        path: the folder; made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._control = ((0, 0), Control())
        self._control_file = str(path / "control.json")  # looked at in every step

    def control(self) -> Control:
        """What the agent says by now."""
        try:
            told_of = os.stat(self._control_file)
        except OSError:
            return self._control[1]
        changed = told_of.st_mtime_ns, told_of.st_ino
        if changed != self._control[0]:
            told = json.loads((self.path / "control.json").read_bytes())
            control = Control(
                round=told.get("round", 0),
                kept=tuple(map(Stamp.read, told.get("kept", ()))),
                every_s=told.get("every_s", EVERY_S),
                memory=told.get("memory"),
            )
            self._control = changed, control
        return self._control[1]

    def start(self) -> Mapping[str, Any] | None:
        """From which snapshot to start, as the agent says; None: there is no agent."""
        try:
            told: Mapping[str, Any] = json.loads((self.path / "start.json").read_bytes())
        except FileNotFoundError:
            return None
        return told

    def slots(self) -> dict[Stamp, Slot]:
        """What is held, or being written."""
        return {
            stamp: Slot(self.path / str(number), number, stamp)
            for number, stamp in self._stamps().items()
            if stamp is not None
        }

    def begin(
        self, stamp: Stamp, *, spares: bool = False, insists: bool = False, sharded: bool = False
    ) -> Slot:
        """The slot for a snapshot: that which one of this node's workers has begun, or the one that is needed least.

        Args:
            spares: what the agent says, the newest and the one that is being written to disk are kept. Else the first
                of what the agent says is, and a step beside this one, which others may have ended with.
            insists: the newest makes room.
            sharded: it counts only if all ranks end with the same step.

        Raises:
            Overtaken: all are kept.
        """
        with self._locked():
            stamps = self._stamps()
            number = next((number for number, known in stamps.items() if known == stamp), None)
            if number is not None:
                return Slot(self.path / str(number), number, stamp)
            kept, pinned = self.control().kept, self._pinned() if spares else None
            number = room_for(stamp, stamps, kept, pinned, spares=spares, insists=insists, sharded=sharded)
            if number is None:
                raise Overtaken(f"no memory for step {stamp.step} before another one is safe, or on disk")
            slot = Slot(self.path / str(number), number, stamp)
            slot.empty()
            self.bad(stamp).unlink(missing_ok=True)
            self._write({**stamps, number: stamp})
            return slot

    def rename(self, slot: Slot, beside: str, name: str) -> None:
        """Give a file of a slot its name, unless the slot has been given to another snapshot meanwhile."""
        with self._locked():
            if self._stamps().get(slot.number) == slot.stamp:
                os.replace(slot.path / beside, slot.path / name)

    def bad(self, stamp: Stamp) -> Path:
        """The file that says that a snapshot cannot be loaded, and why."""
        return self.path / "bad" / f"{stamp.round}-{stamp.step}"

    def pin(self, since: Stamp | None) -> None:
        """The first snapshot of a round from a step on is written to disk; None: none is."""
        if since is not None:
            put(self.path / PINNED, json.dumps(since.told()).encode())
        else:
            (self.path / PINNED).unlink(missing_ok=True)

    def first_since(self, since: Stamp) -> Slot | None:
        """The first snapshot of a round from a step on, if it is here, or is being taken."""
        slots = self.slots()
        first = min((each for each in slots if each.round == since.round and each >= since), default=None)
        return slots[first] if first is not None else None

    def _pinned(self) -> Stamp | None:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            slot = self.first_since(Stamp.read(json.loads((self.path / PINNED).read_bytes())))
            return slot.stamp if slot is not None else None
        return None

    def forget(self, stamps: Sequence[Stamp]) -> None:
        """These are not needed any more."""
        with self._locked():
            for slot in self.slots().values():
                if slot.stamp in stamps:
                    slot.empty()
            left = {number: None if stamp in stamps else stamp for number, stamp in self._stamps().items()}
            self._write(left)

    def _stamps(self) -> dict[int, Stamp | None]:
        told: Mapping[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            told = json.loads((self.path / "slots.json").read_bytes())
        known = {number: told.get(str(number)) for number in range(SLOTS)}
        return {number: Stamp.read(each) if each else None for number, each in known.items()}

    def _write(self, stamps: Mapping[int, Stamp | None]) -> None:
        put(
            self.path / "slots.json",
            json.dumps({number: stamp and stamp.told() for number, stamp in stamps.items()}).encode(),
        )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.path / "slots.lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class Claims:
    """Shares the copying of blocks among the living workers of a node, without a word between them.

    Who copies a block has a lock on its byte, which the kernel takes back if the worker dies.

    Args:
        path: the file of a slot.
        count: how many blocks there are.
    """

    def __init__(self, path: Path, count: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._count = count

    def mine(
        self, *, wait: bool, share: tuple[int, int] = (0, 1), again: Collection[int] = ()
    ) -> Iterator[int]:
        """The blocks that this worker has to copy, each until the next is asked for.

        Args:
            wait: until those are copied that others have begun; if these die, they are ours.
            share: `(n, of)`: no more than every `of`th one, since devices copy later, so that who comes first would
                get all.
            again: what is copied once more.
        """
        first, of = share
        again = set(again)
        for mode in (fcntl.LOCK_NB, 0)[: 1 + wait]:
            for block in range(first % of, self._count, of):
                if block not in again and self._is_done(block):
                    continue
                try:
                    fcntl.lockf(self._fd, fcntl.LOCK_EX | mode, 1, block)
                except (BlockingIOError, PermissionError):
                    continue
                try:
                    if block in again or not self._is_done(block):
                        yield block
                        again.discard(block)
                        os.pwrite(self._fd, DONE, block)
                finally:
                    fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, block)

    def _is_done(self, block: int) -> bool:
        return os.pread(self._fd, 1, block) == DONE

    def close(self) -> None:
        """Nothing more is to be copied."""
        os.close(self._fd)


def put(path: Path, content: bytes) -> None:
    """Write a file that others see only once it is complete."""
    new = path.with_name(f"{path.name}.new{os.getpid()}")
    new.write_bytes(content)
    os.replace(new, path)


def room_for(
    stamp: Stamp,
    slots: Mapping[int, Stamp | None],
    kept: Sequence[Stamp],
    pinned: Stamp | None = None,
    *,
    spares: bool,
    insists: bool = False,
    sharded: bool = False,
) -> int | None:
    """The slot that makes room for a snapshot; None: all are kept. Pure.

    Args:
        slots: what they hold.
        kept: what the agent says, see `Control`.
        pinned: the one that is being written to disk.
        spares, insists, sharded: see `Folder.begin`.
    """
    newest = max((known for known in slots.values() if known is not None), default=None)
    most = Need.BESIDE if not spares else Need.NEWEST if insists else Need.LITTLE

    def need(known: Stamp) -> Need:
        if known in (*kept[:1], pinned):
            return Need.SAFE
        if not spares and known.round == stamp.round and abs(known.step - stamp.step) == 1:
            return Need.BESIDE
        if known in kept:
            return Need.KEPT
        return Need.NEWEST if known == newest else Need.LITTLE

    places = {known: place for place, known in enumerate(kept)}
    needs = {
        number: (need(known), -places.get(known, 0), known)
        for number, known in slots.items()
        if known is not None
    }
    free = [number for number in slots if number not in needs]
    if free:
        return free[0]
    # Two that may be safe: no server answers, and other nodes may drop the same one.
    spared = [known for known in kept[1:] if known > kept[0]] if sharded and not spares else []
    may = [
        number
        for number, (how_much, _, known) in needs.items()
        if how_much <= most and not (len(spared) > 1 and known in spared)
    ]
    return min(may, key=needs.__getitem__, default=None)
