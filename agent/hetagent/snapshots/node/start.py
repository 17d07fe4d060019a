"""Makes what keeps snapshots on this node, from what was asked and what is here."""

import contextlib
import os

from hetagent.context import AgentContext
from hetagent.errors import UsageError
from hetagent.options.parts import SnapshotOptions
from hetagent.session.connection import ServerConnection
from hetagent.snapshots.node.disk import Asked, Disk
from hetagent.snapshots.node.folder import Folder, sweep
from hetagent.snapshots.node.holdings import MOST_WHY
from hetagent.snapshots.node.parting import Parting
from hetagent.snapshots.node.room import Snapshots
from hetagent.snapshots.node.serving import Serving
from hetagent.snapshots.node.space import parsed, space
from hetagent.snapshots.on_disk import is_url
from hetrdzv.protocol.rooms.snapshots import Holdings


def snapshots_of(context: AgentContext, given: SnapshotOptions, line: ServerConnection) -> Snapshots | None:
    """What keeps snapshots on this node; None: nobody wants any, or there is no place.

    Raises:
        UsageError: what was asked for cannot be.
    """
    try:
        memory = parsed(given.memory) if given.memory is not None else None
    except ValueError as error:
        raise UsageError(f"{given.flag('memory')}: {error}") from None
    if memory == 0:
        if given.to is not None:
            raise UsageError(f"{given.flag('to')} needs snapshots, and {given.flag('memory')} turns them off")
        return None
    if given.to is not None and not is_url(given.to):
        try:
            given.to.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{given.flag('to')} {given.to}: {error.strerror or error}") from None
        if not os.access(given.to, os.W_OK | os.X_OK):
            raise UsageError(f"{given.flag('to')} {given.to}: this user cannot write there")
    try:
        return _made(context, given, line, memory)
    except OSError as error:
        if given.given("dir"):
            raise UsageError(f"{given.flag('dir')} {given.folder}: {error.strerror or error}") from None
        why = str(error)
    except ModuleNotFoundError as error:
        why = f"{error.name} is not installed: pip install 'hetrdzv[agent]'"
    context.tell(f"no snapshots on this node: {why}")
    line.offers(snapshots=Holdings(not_taken=why[:MOST_WHY]))
    return None


def _made(
    context: AgentContext, given: SnapshotOptions, line: ServerConnection, memory: int | None
) -> Snapshots:
    identity, options = context.identity, context.options
    alone = options.standalone or options.spec.get("max_nodes") == 1
    folder: Folder | None = None
    if options.standalone and given.to is not None:  # the next agent goes on there, unless another uses it
        with contextlib.suppress(BlockingIOError):
            folder = Folder(given.folder, "standalone", identity.node_id, [str(given.to)], wait_s=0.0)
    if folder is None:
        folder = Folder(given.folder, identity.group, identity.node_id, context.access.servers, context.tell)
    sweep(given.folder)
    try:
        there = space(folder.path, memory)
        serving = Serving(folder.path, context.hold_port, lambda: context.place.address, context.tell)
        name = "standalone" if options.standalone else identity.group  # which is another one each time
        asked = Asked(given.to / name, given.to_every_s, given.keep) if given.to is not None else None
        return Snapshots(
            node_id=identity.node_id,
            line=line,
            tell=context.tell,
            folder=folder,
            space=there,
            serving=None if alone else serving,
            parting=None if alone else Parting(identity, line, serving, context.access.client, context.tell),
            disk=Disk(asked, folder.path, identity, context.tell) if asked is not None else None,
            every_s=given.every_s,
            one_per_node=context.launch.one_per_node,
        )
    except UsageError as error:
        folder.close(remove=False)
        raise UsageError(f"{given.flag('to')} {error}") from None
    except OSError:
        folder.close(remove=False)
        raise
