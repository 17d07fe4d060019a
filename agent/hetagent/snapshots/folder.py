"""The files of snapshots on a node: three slots with a snapshot each, and what agent and workers tell each other.

A slot has `shared.bin`, the tensors that all ranks have alike; `RANK.bin`, those of which a rank has parts;
`RANK.small`, buffers and values; and `RANK.json`, the index of a rank's part, which is written last.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from hetagent.snapshots.errors import Overtaken

FOLDER = "HET_SNAPSHOTS"
"""The variable that names the agent's folder."""

SLOTS, REPLICATED_SLOTS = 3, 2
"""How many snapshots a node has at most: of shards, which are of use with those of other nodes only, one more."""

EVERY_S = 30.0
"""How far apart snapshots are at most, unless a person says so (seconds)."""

VERSION = 1

SHARED, LOCK, INDEX, OWN, SMALL = "shared.bin", "shared.lock", "{}.json", "{}.bin", "{}.small"
"""The files of a slot; see above. Who copies to `shared.bin` has a lock on `shared.lock`."""

TO_DISK = "to_disk"
"""In a slot: this snapshot is to be written to disk as well."""

ALIGNED = 64
"""Where tensors begin in a file: at multiples of so many bytes."""


class Stamp(NamedTuple):
    """Which snapshot: the state after a step, as the workers of a round had it. The newest is the largest."""

    round: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What the agent tells its workers while a round runs."""

    round: int = 0  # 0: without an agent
    ranks: tuple[int, ...] = ()  # of this node; empty: without an agent
    safe: Stamp | None = None  # the newest that outlives any node, as far as is known
    retained: tuple[Stamp, ...] = ()  # not to be overwritten, the one that matters most first
    every_s: float = EVERY_S
    memory: int | None = None  # bytes that all slots together may have
    to_disk: bool = False  # the next one is wanted on disk


class Place(NamedTuple):
    """Where a tensor, or a rank's part of one, lies in a file of a slot."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # of the whole tensor
    offsets: tuple[int, ...]  # of this part
    lengths: tuple[int, ...]
    device: str  # the type of the one that had it
    bytes: int
    file: str = ""
    at: int = 0

    @classmethod
    def read(cls, told: Sequence[Any]) -> "Place":
        """From its form in an index."""
        found: Any = (tuple(each) if isinstance(each, list) else each for each in told)
        return cls(*found)


class Sum(NamedTuple):
    """Size and digest of a file, as it was written."""

    bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A rank's part of a snapshot."""

    stamp: Stamp
    rank: int
    world_size: int
    sharded: bool  # ranks have parts of tensors
    shared: bool  # some tensors are the same on all ranks: in `shared.bin`, whoever has copied them
    files: Mapping[str, Sum] = field(default_factory=dict)  # those that this worker has written
    tensors: tuple[Place, ...] = ()  # in these
    values: int = 0  # where they begin in `RANK.small`

    @property
    def small(self) -> str:
        """The file with buffers and values: of another rank, if that stands in for this one."""
        return next((name for name in self.files if name.endswith(SMALL.format(""))), "")

    @property
    def stands_in(self) -> bool:
        """Whether another rank, which has the same shards, has written this part, since it may be the only one."""
        return self.small != SMALL.format(self.rank)

    @property
    def has_replicated(self) -> bool:
        """Whether this worker has written all that ranks have alike."""
        return not self.shared or SHARED in self.files

    def written(self) -> bytes:
        """As it is in its file."""
        return json.dumps({"v": VERSION, **{name: getattr(self, name) for name in self.__slots__}}).encode()

    @classmethod
    def read(cls, text: bytes) -> "Index":
        """From its file; ValueError: it is none, or of a version that is not known."""
        try:
            told = json.loads(text)
            if (version := told.pop("v", None)) != VERSION:
                raise ValueError(f"it is of version {version!r:.20}: install the same hetrdzv everywhere")
            told["stamp"] = Stamp(*map(int, told["stamp"]))
            told["files"] = {
                str(name): Sum(int(size), str(what)) for name, (size, what) in told["files"].items()
            }
            told["tensors"] = tuple(map(Place.read, told["tensors"]))
            index = cls(**told)
            if not 0 <= int(index.rank) < int(index.world_size):
                raise ValueError(f"it is of rank {index.rank} of {index.world_size}")
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"it makes no sense ({type(error).__name__}: {error})") from None
        return index


@dataclass(frozen=True, slots=True)
class Slot:
    """The files of one snapshot on this node."""

    path: Path
    number: int
    stamp: Stamp

    def indexes(self) -> dict[int, Path]:
        """The indexes that are there, by rank."""
        return {int(path.stem): path for path in self.path.glob("*.json") if path.stem.isdecimal()}

    def read(self) -> dict[int, Index]:
        """The parts of its snapshot that are there, by rank."""
        found = {}
        for rank, path in self.indexes().items():
            with contextlib.suppress(OSError, ValueError):
                index = Index.read(path.read_bytes())
                if (index.stamp, index.rank) == (self.stamp, rank):
                    found[rank] = index
        return found

    def empty(self, ranks: Sequence[int] = ()) -> None:
        """Forget what it holds; files stay, since their memory is used again, but those of others than these ranks."""
        for path in self.indexes().values():
            path.unlink(missing_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        (self.path / TO_DISK).unlink(missing_ok=True)
        for path in self.path.glob("[0-9]*.*") if ranks else ():
            if int(path.name.partition(".")[0]) not in ranks:
                path.unlink(missing_ok=True)


class Folder:
    """All files of a node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._control = Control()
        self._control_of: os.stat_result | None = None
        self._control_file = str(path / "control.json")  # looked at in every step

    def control(self) -> Control:
        """What the agent says by now."""
        with contextlib.suppress(FileNotFoundError):
            of, known = os.stat(self._control_file), self._control_of
            if known is None or (of.st_mtime_ns, of.st_ino) != (known.st_mtime_ns, known.st_ino):
                told = json.loads(Path(self._control_file).read_bytes())
                told["safe"] = Stamp(*told["safe"]) if told.get("safe") else None
                told["retained"] = tuple(Stamp(*each) for each in told.get("retained", ()))
                told["ranks"] = tuple(told.get("ranks", ()))
                self._control, self._control_of = Control(**told), of
        return self._control

    def start(self) -> Mapping[str, Any]:
        """From which snapshot to start, as the agent says; empty: from none."""
        try:
            told: Mapping[str, Any] = json.loads((self.path / "start.json").read_bytes())
        except FileNotFoundError:
            return {}
        return told

    def slots(self) -> dict[Stamp, Slot]:
        """What is held, or being written."""
        found = {}
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            for number, told in json.loads((self.path / "slots.json").read_bytes()).items():
                if told and int(number) in range(SLOTS):
                    stamp = Stamp(*map(int, told))
                    found[stamp] = Slot(self.path / number, int(number), stamp)
        return found

    def begin(self, stamp: Stamp, *, sharded: bool = False, to_disk: bool = False, due: bool = False) -> Slot:
        """The slot for a snapshot, which another worker of this node may have begun; see `room_for`.

        Overtaken: newer ones are here, or what is here is retained.
        """
        with self._locked():
            slots, control = self.slots(), self.control()
            if (slot := slots.get(stamp)) is None:
                held = {slot.number: known for known, slot in slots.items()}
                number = room_for(stamp, held, control.retained, sharded=sharded, due=due)
                if number is None:
                    raise Overtaken(f"newer snapshots than that of step {stamp.step} are here")
                slot = Slot(self.path / str(number), number, stamp)
                slot.empty(control.ranks)
                self.bad(stamp).unlink(missing_ok=True)
                self._write({**held, number: stamp})
            if to_disk:
                (slot.path / TO_DISK).touch()
            return slot

    def rename(self, slot: Slot, beside: str, name: str) -> None:
        """Give a file of a slot its name; Overtaken: the slot has been given to another snapshot meanwhile."""
        with self._locked():
            if slot.stamp not in self.slots():
                raise Overtaken(f"the slot of step {slot.stamp.step} has been given away")
            os.replace(slot.path / beside, slot.path / name)

    def bad(self, stamp: Stamp) -> Path:
        """The file that says that a snapshot cannot be loaded, and why."""
        return self.path / "bad" / f"{stamp.round}-{stamp.step}"

    def forget_newer(self, than: Stamp | None) -> None:
        """All go on from that one, or from nothing, and make what former rounds have beyond it again."""
        current = self.control().round
        with self._locked():
            slots = self.slots()
            newer = [
                stamp
                for stamp in slots
                if (than is None or stamp > than) and (not current or stamp.round < current)
            ]
            for stamp in newer:
                slots.pop(stamp).empty()
            if newer:
                self._write({slot.number: stamp for stamp, slot in slots.items()})

    def _write(self, held: Mapping[int, Stamp]) -> None:
        put(self.path / "slots.json", json.dumps(held).encode())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.path / "slots.lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def write_lock(path: Path, *, wait: bool) -> IO[bytes] | None:
    """The right to copy what all ranks have alike, until the file is closed; None: another living worker has it."""
    file = path.open("wb")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except (BlockingIOError, PermissionError):
        file.close()
        return None
    return file


def put(path: Path, content: bytes) -> None:
    """Write a file that others see only once it is complete."""
    new = path.with_name(f"{path.name}.new{os.getpid()}")
    new.write_bytes(content)
    os.replace(new, path)


def room_for(
    stamp: Stamp,
    slots: Mapping[int, Stamp | None],
    retained: Sequence[Stamp],
    *,
    sharded: bool,
    due: bool = False,
) -> int | None:
    """The slot for a snapshot: an empty one, or that of the oldest which is not retained; None: there is none.

    Another one follows what is `due`: so the one that is being written to disk is spared. The last step of a round
    needs a slot.
    """
    count = SLOTS if sharded else REPLICATED_SLOTS
    spared = retained if due and not sharded else retained[: count - 1]
    held = [(slots.get(number), number) for number in range(count)]
    free = [number for known, number in held if known is None]
    older = [(known, number) for known, number in held if known and known < stamp and known not in spared]
    return free[0] if free else min(older)[1] if older else None
