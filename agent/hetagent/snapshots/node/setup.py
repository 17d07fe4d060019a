"""Makes what keeps snapshots on this node."""

import contextlib
import os
from pathlib import Path

from hetagent.context import AgentContext
from hetagent.errors import UsageError
from hetagent.node.memory import free_memory
from hetagent.options.model import SHM, SnapshotOptions
from hetagent.session.connection import ServerConnection
from hetagent.snapshots.folder import Folder
from hetagent.snapshots.node.catalog import Catalog
from hetagent.snapshots.node.disk import DiskWriter
from hetagent.snapshots.node.files import MOST_WHY
from hetagent.snapshots.node.folder import NodeFolder, sweep
from hetagent.snapshots.node.handover import Handover
from hetagent.snapshots.node.hook import SnapshotHook
from hetagent.snapshots.node.server import SnapshotServer
from hetagent.snapshots.on_disk import is_url
from hetrdzv.protocol.snapshots import Holdings


def snapshot_hook(
    context: AgentContext, options: SnapshotOptions, line: ServerConnection
) -> SnapshotHook | None:
    """What keeps snapshots on this node; None: they are off, or there is no place for them."""
    if options.memory == 0:
        return None
    try:
        return _made(context, options, line)
    except OSError as error:
        if options.dir is not None:
            raise UsageError(f"--snapshot-dir {options.dir}: {error.strerror or error}") from None
        why = str(error)
    except ModuleNotFoundError as error:
        why = f"{error.name} is not installed: pip install 'hetrdzv[agent]'"
    context.tell(f"no snapshots on this node: {why}")
    line.offers(snapshots=Holdings(not_taken=why[:MOST_WHY]))
    return None


def _made(context: AgentContext, options: SnapshotOptions, line: ServerConnection) -> SnapshotHook:
    identity, standalone, log = context.identity, context.options.standalone, context.tell
    parent, folder = options.dir or Path(SHM), None
    if standalone and options.to is not None:  # the next agent goes on there, unless another uses it
        with contextlib.suppress(BlockingIOError):
            folder = NodeFolder(parent, "standalone", identity.node_id, [str(options.to)], wait_s=0.0)
    if folder is None:
        folder = NodeFolder(parent, identity.group, identity.node_id, context.access.servers, log)
    sweep(parent)
    try:
        alone = standalone or context.options.spec.get("max_nodes") == 1
        hold_port = None if alone else context.hold_port
        server = SnapshotServer(folder.path, hold_port, lambda: context.place.address, log)
        disk = None
        if options.to is not None:
            _require_writable(options.to)
            # A group of --standalone has another name each time.
            catalog = Catalog(options.to / ("standalone" if standalone else identity.group), log)
            slots = Folder(folder.path)
            disk = DiskWriter(catalog, options.to_every_s, options.keep, slots, identity, log)
        return SnapshotHook(
            node_id=identity.node_id,
            line=line,
            log=log,
            folder=folder,
            memory=free_space(folder.path) // 2 if options.memory is None else options.memory,
            server=server,
            handover=Handover(identity, line, server, context.access.client, log),
            disk=disk,
            every_s=options.every_s,
            one_per_node=context.launch.one_per_node,
        )
    except BaseException:
        folder.close(remove=False)
        raise


def _require_writable(path: Path) -> None:
    """Make the directory of `--snapshot-to`."""
    if is_url(path):
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--snapshot-to {path}: {error.strerror or error}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"--snapshot-to {path}: this user cannot write there")


def free_space(folder: Path) -> int:
    """What snapshots may take in a folder (bytes); what is in the folder already counts as free."""
    stats = os.statvfs(folder)
    used = 0
    for each in folder.glob("*/*"):
        with contextlib.suppress(OSError):  # a worker of the last agent may still be at it
            used += each.lstat().st_blocks * 512
    return used + min(stats.f_bavail * stats.f_frsize, free_memory())
