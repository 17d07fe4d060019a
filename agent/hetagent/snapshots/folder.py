"""The files of snapshots on a node: three slots with a snapshot each, and what agent and workers tell each other.

A slot is a directory, `0` to `2`, and a link to it has the name of its snapshot, such as `3-120`: who still has that
name once the slot is given away finds nothing there. It has `shared.bin`, the tensors that all ranks have alike;
`RANK.bin`, those of which a rank has parts; `RANK.small`, buffers and values; and `RANK.json`, the index of a rank's
part, which is written last. A snapshot on disk has the same files.
"""

import contextlib
import fcntl
import json
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, NamedTuple

from xxhash import xxh3_64_hexdigest

from hetagent.snapshots.errors import SnapshotSuperseded

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

NEW = ".new"
"""In the name of a file that is not complete yet."""

_in_process = threading.Lock()  # locks of files are between processes

ALIGNED = 64
"""Where tensors begin in a file: at multiples of so many bytes."""


class SnapshotId(NamedTuple):
    """Which snapshot: the state after a step, as the workers of a round had it. The newest of a job is the largest."""

    round: int
    step: int
    origin: str = ""  # of one on disk: the job, as the server names it

    @property
    def name(self) -> str:
        """Of the link to its slot, and below the address at which other nodes fetch it."""
        return f"{self.round}-{self.step}"

    @classmethod
    def parse(cls, name: str) -> "SnapshotId | None":
        """That of a link; None: it is of something else."""
        match = re.fullmatch(r"(\d{1,15})-(\d{1,15})", name, re.ASCII)
        return cls(int(match[1]), int(match[2])) if match is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundControl:
    """What the agent tells its workers while a round runs."""

    round: int = 0  # 0: without an agent
    ranks: tuple[int, ...] = ()  # of this node; empty: without an agent
    retained: tuple[SnapshotId, ...] = ()  # not to be overwritten, the one that matters most first
    must_wait: bool = False  # with the next one: others have no copies of the last one yet
    every_s: float = EVERY_S
    memory: int | None = None  # bytes that all slots together may have
    to_disk: bool = False  # the next one is wanted on disk


class TensorLocation(NamedTuple):
    """Where a tensor, or a rank's part of one, lies in a file of a slot."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # of the whole tensor
    offsets: tuple[int, ...]  # of this part
    lengths: tuple[int, ...]
    bytes: int
    head: int  # bytes of what comes before it in its file, so that `torch.load` reads it there
    file: str
    at: int

    @property
    def end(self) -> int:
        """Where it ends in its file."""
        return self.at + self.bytes


class FileDigest(NamedTuple):
    """Size and digest of a file, as it was written."""

    bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A rank's part of a snapshot."""

    stamp: SnapshotId
    rank: int
    writer: int  # another rank, which has the same shards: it stands in, since this one may be dead
    world_size: int
    sharded: bool  # ranks have parts of tensors
    shared: bool  # some tensors are the same on all ranks: in `shared.bin`, whoever has copied them
    files: Mapping[str, FileDigest] = field(default_factory=dict)  # those that the writer has written
    tensors: tuple[TensorLocation, ...] = ()  # in these
    digest: str = field(default="", compare=False)  # of its file

    @property
    def small_file(self) -> str:
        """The file with buffers and values."""
        return SMALL.format(self.writer)

    @property
    def has_replicated(self) -> bool:
        """Whether this worker has written all that ranks have alike."""
        return not self.shared or SHARED in self.files

    def to_json(self) -> bytes:
        """As it is in its file."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "digest"}
        return json.dumps({"v": VERSION, **fields}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "Index":
        """From its file; ValueError: it is none, or of a version that is not known."""
        try:
            fields = json.loads(text)
            if (version := fields.pop("v", None)) != VERSION:
                raise ValueError(f"it is of version {version!r:.20}: install the same hetrdzv everywhere")
            fields["stamp"] = SnapshotId(*fields["stamp"])
            fields["files"] = {name: FileDigest(*what) for name, what in fields["files"].items()}
            places: Any = (map(_freeze, place) for place in fields["tensors"])
            fields["tensors"] = tuple(TensorLocation(*place) for place in places)
            index = cls(**fields, digest=xxh3_64_hexdigest(text))
            if not 0 <= index.rank < index.world_size:
                raise ValueError(f"it is of rank {index.rank} of {index.world_size}")
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"it makes no sense ({type(error).__name__}: {error})") from None
        return index


def _freeze(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Slot:
    """The files of one snapshot on this node; `path` is there until it is given away."""

    path: Path
    stamp: SnapshotId

    @property
    def directory(self) -> Path:
        """What the path is a link to."""
        return self.path.with_name(os.readlink(self.path))

    def find_indexes(self) -> dict[int, Path]:
        """The indexes that are there, by rank; none once the slot is given away."""
        with contextlib.suppress(FileNotFoundError):
            return {
                int(path.stem): path
                for path in self.path.iterdir()
                if path.suffix == ".json" and path.stem.isdecimal()
            }
        return {}

    def read_indexes(
        self, read: Callable[[Path], Index] = lambda path: Index.from_json(path.read_bytes())
    ) -> dict[int, Index]:
        """The parts of its snapshot that are there, by rank."""
        found = {}
        for rank, path in sorted(self.find_indexes().items()):
            with contextlib.suppress(OSError, ValueError):
                index = read(path)
                if (index.stamp, index.rank) == (self.stamp, rank):
                    found[rank] = index
        return found


class SnapshotFiles:
    """All files of a node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directories = [path / str(number) for number in range(SLOTS)]
        for each in (path, *self.directories):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._control, self._control_of = RoundControl(), (0, 0)
        self._control_file = str(path / "control.json")  # looked at in every step

    def read_control(self) -> RoundControl:
        """What the agent says by now, as far as it can be read."""
        with contextlib.suppress(OSError if self._control.round else FileNotFoundError):
            stats = os.stat(self._control_file)
            if (of := (stats.st_mtime_ns, stats.st_ino)) != self._control_of:
                fields = json.loads(Path(self._control_file).read_bytes())
                fields["retained"] = tuple(SnapshotId(*each) for each in fields.get("retained", ()))
                fields["ranks"] = tuple(fields.get("ranks", ()))
                self._control, self._control_of = RoundControl(**fields), of
        return self._control

    def write_control(self, control: RoundControl) -> None:
        """Say it, as the agent."""
        write_atomic(Path(self._control_file), json.dumps(asdict(control)).encode())

    def read_start(self) -> Mapping[str, Any]:
        """From which snapshot to start, as the agent says; empty: from none."""
        with contextlib.suppress(FileNotFoundError):
            return dict(json.loads((self.path / "start.json").read_bytes()))
        return {}

    def find_slots(self) -> dict[SnapshotId, Slot]:
        """What is held, or being written."""
        found = {}
        with contextlib.suppress(FileNotFoundError):  # the agent has ended
            for path in self.path.iterdir():
                if (stamp := SnapshotId.parse(path.name)) is not None:
                    found[stamp] = Slot(path, stamp)
        return found

    def claim_slot(
        self, stamp: SnapshotId, *, sharded: bool = False, to_disk: bool = False, due: bool = False
    ) -> Slot:
        """The slot for a snapshot, which another worker of this node may have begun; see `choose_snapshot_to_evict`.

        SnapshotSuperseded: newer ones are here, or what is here is retained.
        """
        with self._hold_lock():
            slots, control = self.find_slots(), self.read_control()
            if (slot := slots.get(stamp)) is None:
                oldest = choose_snapshot_to_evict(stamp, slots, control.retained, sharded=sharded, due=due)
                if oldest is not None:
                    slots.pop(oldest).path.unlink()
                held = {each.directory for each in slots.values()}
                directory = next(each for each in self.directories if each not in held)
                # Files stay, since their memory is used again, but those of ranks that are elsewhere now.
                stay = {LOCK, SHARED, *map(OWN.format, control.ranks)}
                for each in directory.iterdir():
                    if each.name not in stay and (control.ranks or each.suffix != ".bin"):
                        each.unlink(missing_ok=True)
                slot = Slot(self.path / stamp.name, stamp)
                slot.path.symlink_to(directory.name)
            if to_disk:
                (slot.path / TO_DISK).touch()
            return slot

    def release_slot(self, stamp: SnapshotId) -> None:
        """Give up a snapshot that cannot be loaded."""
        with self._hold_lock():
            (self.path / stamp.name).unlink(missing_ok=True)

    def discard_newer(self, than: SnapshotId | None) -> None:
        """All go on from that one, or from nothing, and make what former rounds have beyond it again."""
        current = self.read_control().round
        with self._hold_lock():
            for stamp, slot in self.find_slots().items():
                if (than is None or stamp > than) and (not current or stamp.round < current):
                    slot.path.unlink()

    @contextlib.contextmanager
    def _hold_lock(self) -> Iterator[None]:
        # Not flock(), which a child has as well that was forked meanwhile, to load data perhaps.
        with _in_process, (self.path / "slots.lock").open("wb") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
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


@contextlib.contextmanager
def open_atomic(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that others see only once it is complete."""
    # Who writes the same in a shared directory may be of another container, and have the same pid.
    new = path.with_name(f"{path.name}{NEW}{token_hex(8)}")
    try:
        with new.open("wb") as file:
            yield file
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, content: bytes) -> None:
    """Write all of such a file."""
    with open_atomic(path) as file:
        file.write(content)


def choose_snapshot_to_evict(
    stamp: SnapshotId,
    held: Collection[SnapshotId],
    retained: Sequence[SnapshotId],
    *,
    sharded: bool,
    due: bool = False,
) -> SnapshotId | None:
    """What makes room for a snapshot: the oldest that is not retained; None: a slot is free.

    Another one follows what is `due`: so the one that is being written to disk, the last in `retained`, is spared.
    The last step of a round needs a slot.
    """
    count = SLOTS if sharded else REPLICATED_SLOTS
    if len(held) < count:
        return None
    spared = retained if due else retained[: count - 1]
    older = [known for known in held if known < stamp and known not in spared]
    if not older:
        raise SnapshotSuperseded(f"newer snapshots than that of step {stamp.step} are here")
    return min(older)
