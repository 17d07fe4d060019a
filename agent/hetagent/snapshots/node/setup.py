"""Makes what keeps snapshots on this node."""

from pathlib import Path

from hetagent.context import AgentContext
from hetagent.errors import UsageError
from hetagent.node import scratch
from hetagent.options.model import SHM, SnapshotOptions
from hetagent.session.connection import ServerConnection
from hetagent.snapshots.node.files import MOST_WHY
from hetagent.snapshots.node.folder import OLD_S, PREFIX, NodeFolder
from hetagent.snapshots.node.hook import SnapshotHook
from hetrdzv.protocol.snapshots import SnapshotInventory


def make_snapshot_hook(
    context: AgentContext, options: SnapshotOptions, connection: ServerConnection
) -> SnapshotHook | None:
    """What keeps snapshots on this node; None: they are off, or there is no place for them."""
    if options.memory == 0:
        return None
    try:
        return _make_hook(context, options, connection)
    except OSError as error:
        if options.dir is not None:
            raise UsageError(f"--snapshot-dir {options.dir}: {error.strerror or error}") from None
        why = str(error)
    except ModuleNotFoundError as error:
        why = f"{error.name} is not installed: pip install 'hetrdzv[agent]'"
    context.tell(f"no snapshots on this node: {why}")
    connection.update_offer(snapshots=SnapshotInventory(disabled_reason=why[:MOST_WHY]))
    return None


def _make_hook(context: AgentContext, options: SnapshotOptions, connection: ServerConnection) -> SnapshotHook:
    group, servers, parent = context.identity.group, context.access.servers, options.dir or Path(SHM)
    if context.options.standalone and options.to is not None:  # else its group has another name each time
        group, servers = "standalone", [str(options.to)]
    folder = NodeFolder(parent, group, context.identity.node_id, servers, context.tell)
    scratch.remove_stale_folders(PREFIX, parent, OLD_S)
    try:
        return SnapshotHook(context, options, connection, folder)
    except BaseException:
        folder.close(remove=False)
        raise
