"""Snapshots of the state of training in the memory of each node: where they are, what they may take, who serves them.

`room.py` is the agent's part in each round; `folder.py` and `space.py` say where the files are, `exchange.py` what it
and the workers tell each other in them, `holdings.py` what a node has (pure); other nodes fetch it from `serving.py`.
"""

import contextlib
import os
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from hetagent.feature import Feature, Flags
from hetagent.options.model import UsageError
from hetagent.snapshots.folder import EVERY_S
from hetagent.snapshots.on_disk import is_url, path_of

if TYPE_CHECKING:
    from hetagent.assembly import Node
    from hetagent.job.room import Room
    from hetagent.protocol.line import Line

TO_EVERY_S, KEEP = 600, 3
"""How often snapshots are written to disk unless a person says so (seconds), and how many are kept there."""

MOST_WHY = 256
"""How long a reason may be that the server hears (characters)."""

SHM = "/dev/shm"
"""Where Linux has memory that looks like files."""


class KeepSnapshots(Feature):
    """`--snapshot-dir`, `--snapshot-memory`, `--snapshot-every-s`, `--snapshot-to` and what belongs to that.

    Attributes:
        folder: where the node's folder is made.
        memory: what all snapshots of the node may take, as text; None: half of what is free.
        every_s: how far apart they are at most (seconds).
        to: the directory that they are written to; None: they are not.
        to_every_s: how often (seconds).
        keep: how many are kept there.
    """

    flags: ClassVar[Flags] = {
        "--snapshot-dir": {
            "metavar": "DIR",
            "help": f"Where snapshots are kept (hetagent.snapshots): a tmpfs (or HET_SNAPSHOT_DIR; default: {SHM}).",
        },
        "--snapshot-memory": {
            "metavar": "SIZE|off",
            "help": "What all snapshots of this node may take, such as 64G (or HET_SNAPSHOT_MEMORY; default: half of "
            "what is free there); off or 0: no snapshots.",
        },
        "--snapshot-every-s": {
            "metavar": "SECONDS",
            "help": f"How far apart they are at most (or HET_SNAPSHOT_EVERY_S; default: {EVERY_S:.0f}).",
        },
        "--snapshot-to": {
            "metavar": "DIR|URL",
            "help": "Also write snapshots to a directory that all nodes share, or an object store, as checkpoints of "
            "torch.distributed.checkpoint: DIR/GROUP/step-... (or HET_SNAPSHOT_TO; default: no).",
        },
        "--snapshot-to-every-s": {
            "metavar": "SECONDS",
            "help": f"How often to write one (or HET_SNAPSHOT_TO_EVERY_S; default: {TO_EVERY_S}).",
        },
        "--snapshot-keep": {
            "metavar": "N",
            "help": f"How many to keep there (or HET_SNAPSHOT_KEEP; default: {KEEP}).",
        },
    }

    def __init__(self, args: Namespace, environ: Mapping[str, str]) -> None:
        self._args, self._environ = args, environ
        self.folder = Path(self._given("dir") or SHM).absolute()
        self.memory = self._given("memory")
        self.ports = 0 if (self.memory or "").strip().lower() in ("off", "0") else 1
        self.every_s = self._number("every_s", int(EVERY_S), least=1, what="a number of seconds")
        to = self._given("to")
        self.to = None if not to else self._url(to) if is_url(to) else Path(to).absolute()
        self.to_every_s = self._number("to_every_s", TO_EVERY_S, least=1, what="a number of seconds")
        self.keep = self._number("keep", KEEP, least=1, what="a number")
        if self.to is None and (unused := next(filter(self._given, ("to_every_s", "keep")), None)):
            raise UsageError(f"{self._named(unused)}: nothing is written without --snapshot-to DIR")

    def _url(self, text: str) -> Path:
        if urlsplit(text).password is not None:
            raise UsageError(
                f"{self._named('to')}: no password in a URL, which others see in the list of processes: give it in the "
                "environment, or in the configuration of what reads such URLs"
            )
        try:
            return path_of(text)
        except (ImportError, ValueError) as error:
            more = "; pip install 'hetrdzv[urls]', and what reads these (s3fs, gcsfs, adlfs)"
            raise UsageError(f"{self._named('to')} {text}: {error}{more}") from None

    def _number(self, name: str, default: int, *, least: int, what: str) -> int:
        text = self._given(name)
        if text is None:
            return default
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or int(text) < least:
            raise UsageError(f"{self._named(name)} {text}: give {what}")
        return int(text)

    def _given(self, what: str) -> str | None:
        flag: str | None = getattr(self._args, f"snapshot_{what}")
        return flag or self._environ.get(f"HET_SNAPSHOT_{what.upper()}") or None

    def _named(self, what: str) -> str:
        """By which name something was given."""
        flag = getattr(self._args, f"snapshot_{what}")
        return f"--snapshot-{what.replace('_', '-')}" if flag else f"HET_SNAPSHOT_{what.upper()}"

    def room(self, node: "Node", line: "Line", others: "Sequence[Room]") -> "Room | None":
        """What keeps them; None: nobody wants any, or there is no place.

        Raises:
            UsageError: what was asked for cannot be.
        """
        from hetagent.job.snapshots.space import parsed
        from hetrdzv.protocol.rooms.snapshots import Holdings

        try:
            memory = parsed(self.memory) if self.memory is not None else None
        except ValueError as error:
            raise UsageError(f"{self._named('memory')}: {error}") from None
        if memory == 0:
            if self.to is not None:
                raise UsageError(
                    f"{self._named('to')} needs snapshots, and {self._named('memory')} turns them off"
                )
            return None
        if self.to is not None and not is_url(self.to):
            try:
                self.to.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"{self._named('to')} {self.to}: {error.strerror or error}") from None
            if not os.access(self.to, os.W_OK | os.X_OK):
                raise UsageError(f"{self._named('to')} {self.to}: this user cannot write there")
        try:
            return self._made(node, line, memory)
        except OSError as error:
            if self._given("dir"):
                raise UsageError(f"{self._named('dir')} {self.folder}: {error.strerror or error}") from None
            why = str(error)
        except ModuleNotFoundError as error:
            why = f"{error.name} is not installed: pip install 'hetrdzv[agent]'"
        node.tell(f"no snapshots on this node: {why}")
        line.offers(snapshots=Holdings(not_taken=why[:MOST_WHY]))
        return None

    def _made(self, node: "Node", line: "Line", memory: int | None) -> "Room":
        from hetagent.job.snapshots.disk import Asked, Disk
        from hetagent.job.snapshots.folder import Folder, sweep
        from hetagent.job.snapshots.parting import Parting
        from hetagent.job.snapshots.room import Snapshots
        from hetagent.job.snapshots.serving import Serving
        from hetagent.job.snapshots.space import space

        identity, options = node.identity, node.options
        alone = options.standalone or options.spec.get("max_nodes") == 1
        folder: Folder | None = None
        if options.standalone and self.to is not None:  # the next agent goes on there, unless another uses it
            with contextlib.suppress(BlockingIOError):
                folder = Folder(self.folder, "standalone", identity.node_id, [str(self.to)], wait_s=0.0)
        if folder is None:
            folder = Folder(self.folder, identity.group, identity.node_id, node.access.servers, node.tell)
        sweep(self.folder)
        try:
            there = space(folder.path, memory)
            serving = Serving(folder.path, identity, node.hold_port, lambda: node.place.address, node.tell)
            name = "standalone" if options.standalone else identity.group  # which is another one each time
            asked = Asked(self.to / name, self.to_every_s, self.keep) if self.to is not None else None
            return Snapshots(
                node_id=identity.node_id,
                line=line,
                tell=node.tell,
                folder=folder,
                space=there,
                serving=None if alone else serving,
                parting=None if alone else Parting(identity, line, serving, node.access.client, node.tell),
                disk=Disk(asked, folder.path, identity, node.tell) if asked is not None else None,
                every_s=self.every_s,
                one_per_node=node.launch.one_per_node,
            )
        except UsageError as error:
            folder.close(remove=False)
            raise UsageError(f"{self._named('to')} {error}") from None
        except OSError:
            folder.close(remove=False)
            raise
