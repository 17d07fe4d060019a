"""What agent and workers tell each other about snapshots, in files of the node's folder."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from hetagent.node.console import WarnOnce
from hetagent.node.network import host_port
from hetagent.snapshots.asked import ASK
from hetagent.snapshots.node import folder, holdings
from hetagent.snapshots.node.holdings import MOST_WHY
from hetrdzv.protocol.rooms.snapshots import Chosen, Held, Stamp

SLOTS = ("0", "1", "2")
STAMPS = folder.SLOTS
"""The file that says what they hold."""
BAD = "bad"
ORIGIN = "origin"


@dataclass(frozen=True, slots=True)
class Bad:
    """A worker could not load a copy of a snapshot, which was on `node_id`."""

    stamp: Stamp
    node_id: str
    why: str


@dataclass(frozen=True, slots=True)
class Done:
    """What a worker has answered.

    Attributes:
        step: of the newest snapshot that it has a part of; None: of none.
        why: why it has saved nothing; empty: it has.
    """

    step: int | None
    why: str


class Exchange:
    """The files.

    Args:
        path: the folder.
        say: gets what is wrong with parts of snapshots, once each.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path = path
        self._log_once = WarnOnce(say)
        self._parts: dict[Path, tuple[tuple[int, ...], holdings.Part | None]] = {}
        for name in (*SLOTS, ASK, BAD):
            (path / name).mkdir(mode=0o700, exist_ok=True)

    def folders(self) -> list[str]:
        """Where workers make files."""
        return [str(self.path / name) for name in (*SLOTS, ASK, BAD)]

    # -- to the workers ----------------------------------------------------------------------------------------

    def begin(self, origin: str) -> None:
        """A round begins: forget what the workers of the last one have said, and snapshots of another job.

        Args:
            origin: the job; empty: the server does not say.
        """
        self._empty((ASK, BAD))
        (self.path / "start.json").unlink(missing_ok=True)
        if origin and origin != self.origin:
            (self.path / STAMPS).unlink(missing_ok=True)
            self._empty(SLOTS)
            put(self.path / ORIGIN, origin)

    def _empty(self, names: Iterable[str]) -> None:
        for name in names:  # the folders stay, since they are watched
            for path in (self.path / name).iterdir():
                with contextlib.suppress(OSError):
                    path.unlink()

    @property
    def origin(self) -> str:
        """Of which job the snapshots are; empty: of none yet."""
        with contextlib.suppress(OSError, ValueError):
            told: object = json.loads((self.path / ORIGIN).read_bytes())
            return str(told)
        return ""

    def control(
        self,
        number: int,
        safe: Stamp | None,
        kept: Iterable[Stamp],
        every_s: int,
        memory: int,
        *,
        to_disk: bool = False,
    ) -> None:
        """Tell which snapshots are not to be overwritten, and how often to take one.

        Args:
            number: the round's.
            safe, kept, to_disk: see the workers' `Control`.
            every_s: how far apart (seconds).
            memory: how much all snapshots here may take together (bytes).
        """
        told = {"round": number, "kept": [[stamp.round, stamp.step] for stamp in kept], "every_s": every_s}
        told |= {"safe": [safe.round, safe.step] if safe is not None else None, "to_disk": to_disk}
        put(self.path / "control.json", {**told, "memory": memory})

    def start(self, chosen: Chosen | None, own: str, on_disk: Mapping[str, Any] | None = None) -> None:
        """Tell from which snapshot to begin, and who has it; this node first.

        Args:
            own: this node's id.
            on_disk: where it is on disk.
        """
        if chosen is None:
            put(self.path / "start.json", {})
            return
        slot = self._slot(Stamp(round=chosen.round, step=chosen.step))
        sources = [on_disk] if on_disk is not None else []
        for source in sorted(chosen.sources, key=lambda source: source.node_id != own):
            path = str(slot) if slot is not None and source.node_id == own else None
            if path is None and not source.port:
                continue
            url = f"http://{host_port(source.address, source.port)}/" if source.port else ""
            ranks = {str(part.rank): part.digest for part in source.ranks}
            of = {"node": source.node_id, "url": url, "key": source.key, "path": path}
            sources.append({**of, "whole": source.whole, "ranks": ranks})
        told: dict[str, Any] = {
            name: getattr(chosen, name) for name in ("round", "step", "world_size", "sharded")
        }
        put(self.path / "start.json", {**told, "sources": sources})

    # -- from the workers --------------------------------------------------------------------------------------

    def held(self) -> list[Held]:
        """All that is held here; what does not count is left out, and said."""
        found, known = [], {}
        for slot, stamp in slots(self.path).items():
            parts = []
            for path in sorted((self.path / slot).glob("*.json")):
                if path.stem.isdecimal():
                    known[path] = self._part(path, stamp)
                    parts += [part] if (part := known[path][1]) is not None else []
            if not parts:
                continue
            try:
                found.append(holdings.held(parts))
            except holdings.Unusable as error:
                self._log_once(f"the snapshot of step {stamp.step} does not count here: {error}")
        self._parts = known
        return found

    def _part(self, path: Path, stamp: Stamp) -> tuple[tuple[int, ...], holdings.Part | None]:
        """A part, which is read again only if its file is another one now."""
        part: holdings.Part | None = None
        key: tuple[int, ...] = ()
        try:
            stats = path.stat()
            key = (stats.st_ino, stats.st_mtime_ns, stats.st_size, stamp.round, stamp.step)
            if path in self._parts and self._parts[path][0] == key:
                return self._parts[path]
            text = path.read_bytes()
            part = holdings.read(
                text, xxhash.xxh3_64_hexdigest(text), stamp, int(path.stem), _sizes(path.parent)
            )
        except holdings.Unusable as error:
            self._log_once(
                f"rank {path.stem}'s part of the snapshot of step {stamp.step} does not count: {error}"
            )
        except OSError:  # it is being replaced
            key = ()
        return key, part

    def _slot(self, stamp: Stamp) -> Path | None:
        return next((self.path / slot for slot, known in slots(self.path).items() if known == stamp), None)

    def reached(self) -> int:
        """The newest step that a worker of this node has told."""
        found = [0]
        for path in (self.path / ASK).glob("*.step"):
            with contextlib.suppress(OSError, ValueError):
                found.append(int(path.read_bytes()))
        return max(found)

    def given_up(self) -> str:
        """Why a worker takes no more snapshots; empty: all do."""
        whys = (str(_read(path).get("why") or "") for path in sorted((self.path / ASK).glob("*.off")))
        return next(filter(None, whys), "")[:MOST_WHY]

    def bad(self) -> list[Bad]:
        """The copies that workers could not load."""
        found = []
        for path in sorted((self.path / BAD).iterdir()):
            match = re.fullmatch(r"(\d{1,15})-(\d{1,15})", path.name)
            if match is not None and int(match[1]):
                told = _read(path)
                stamp = Stamp(round=int(match[1]), step=int(match[2]))
                found.append(Bad(stamp, str(told.get("node", ""))[:128], str(told.get("why", ""))[:500]))
        return found

    # -- before the end ----------------------------------------------------------------------------------------

    def pipes(self) -> dict[int, Path]:
        """The pipes of the workers that have opened snapshots, by rank."""
        found = {int(path.name): path for path in (self.path / ASK).iterdir() if path.name.isdecimal()}
        return {rank: path for rank, path in found.items() if path.is_fifo()}

    def said_last(self) -> set[int]:
        """The workers that have answered before they were asked, since they are about to end."""
        answered = {int(path.stem) for path in (self.path / ASK).glob("*.done") if path.stem.isdecimal()}
        return answered - set(self.pipes())

    def done(self, rank: int) -> Done | None:
        """What a worker has answered; None: nothing yet."""
        return _done(self.path / ASK / f"{rank}.done")


def ask(pipe: Path) -> bool:
    """Ask a worker to save, since its round ends; returns whether it listens. What it answered before is forgotten."""
    try:
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        pipe.with_suffix(".done").unlink(missing_ok=True)
        return os.write(fd, b"!") == 1
    except OSError:  # it dies right now
        return False
    finally:
        os.close(fd)


def slots(path: Path) -> dict[str, Stamp]:
    """What the slots of a folder hold, or are to hold, by name."""
    told, found = _read(path / STAMPS), {}
    for slot in SLOTS:
        stamp = told.get(slot)
        if isinstance(stamp, list) and len(stamp) == 2 and all(type(number) is int for number in stamp):
            found[slot] = Stamp(round=stamp[0], step=stamp[1])
    return found


def put(path: Path, told: object) -> None:
    """Write a file that others see only once it is complete.

    Raises:
        OSError: it cannot be written.
    """
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(told), encoding="utf-8")
    os.replace(new, path)


def _read(path: Path) -> Mapping[str, Any]:
    """What a file says; nothing if it is not there, or makes no sense."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        told = json.loads(path.read_bytes())
        if isinstance(told, dict):
            return told
    return {}


def _sizes(slot: Path) -> dict[str, int]:
    """Of the files of a slot, but for those that are gone just now (bytes)."""
    sizes = {}
    for path in slot.iterdir():
        with contextlib.suppress(OSError):
            sizes[path.name] = path.stat().st_size
    return sizes


def _done(path: Path) -> Done | None:
    told = _read(path)
    if not told:
        return None
    step = told.get("step")
    return Done(step if isinstance(step, int) else None, str(told.get("why") or "")[:500])
