"""Snapshots of the state of training: what nodes hold of them, and from which one a round begins.

A snapshot is what the workers of a round held after a step. Its parts are on nodes, which declare all that they hold
with each join and whenever it changes; the server keeps no other record of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Le, MaxLen

from hetrdzv.protocol.bounds import Count, Id, PositiveInt, Rank, RequestBody, ShortText, max_items
from hetrdzv.protocol.settings import MAX_SLOTS, MAX_WORLD_SIZE
from hetrdzv.protocol.texts.node_rank_lists import NO_NODES, NodeList

MAX_HELD_SNAPSHOTS = MAX_DISK_SNAPSHOTS = 4
"""How many snapshots in memory, and how many on disk, a node declares."""

MAX_REFUSED_SNAPSHOTS = 8
"""How many snapshots a node refuses at a time."""

SnapshotOrigin = Annotated[str, MaxLen(32)]
"""The name of a job: as the `start` of its rounds says it."""

WorldSize = Annotated[int, Ge(1), Le(MAX_WORLD_SIZE)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotId(RequestBody):
    """Which snapshot: of which round, after which step of it; `origin`: on disk, of another job; None: of this one."""

    round: PositiveInt
    step: Count
    origin: SnapshotOrigin | None = None

    @property
    def sort_key(self) -> tuple[bool, int, int]:
        """The newer, the larger: whatever other jobs have is older, and so is that of an earlier round."""
        return self.origin is None, self.round, self.step


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart(RequestBody):
    """A node has what a rank of a snapshot's round has written; `digest` is that of its index, in hexadecimal."""

    rank: Rank
    digest: Annotated[str, MaxLen(32)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSnapshot(RequestBody):
    """What a node has of a snapshot.

    Attributes:
        whole: it has all tensors that its ranks have alike.
        sharded: each rank has tensors of its own, without which the snapshot is not complete.
        size: of all that it has (bytes).
        ranks: whose parts it has.
    """

    round: PositiveInt
    step: Count
    world_size: WorldSize
    whole: bool = False
    sharded: bool = False
    size: Count = 0
    ranks: Annotated[tuple[RankPart, ...], max_items(2 * MAX_SLOTS)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSnapshot(RequestBody):
    """A snapshot of the job `origin` that is complete in the directory of `--snapshot-to`; see `HeldSnapshot`.

    Of different jobs only `written_at` says which one is newer: when it was complete, by the clock of whoever wrote it
    (seconds since the epoch).
    """

    round: PositiveInt
    step: Count
    origin: SnapshotOrigin = ""
    written_at: Count = 0
    world_size: WorldSize
    sharded: bool = False
    size: Count = 0


@dataclass(frozen=True, kw_only=True)
class SnapshotWriteFailure(RequestBody):
    """A node could not write a snapshot to the directory of `--snapshot-to`, and why."""

    stamp: SnapshotId
    why: ShortText


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInventory(RequestBody):
    """All that a node holds of snapshots.

    Attributes:
        origin: of which job; empty: of none yet. Those of another job do not count.
        port, key: where its agent serves them (0: it does not), and a secret of agents by which members fetch them.
        reached: the newest step that a worker of the node had reached in the round that has ended.
        refused: those of which its workers could load no copy.
        on_disk: those that it sees on disk, the newest first; they may be of an earlier job.
        not_written: what it has last tried to write there, in vain.
        disabled_reason: why a worker of the node takes none any more in this round; empty: all do.
    """

    origin: SnapshotOrigin = ""
    port: Annotated[Count, Le(65_535)] = 0
    key: Annotated[str, MaxLen(128)] = field(default="", repr=False)
    held: Annotated[tuple[HeldSnapshot, ...], max_items(MAX_HELD_SNAPSHOTS)] = ()
    reached: Count = 0
    refused: Annotated[tuple[SnapshotId, ...], max_items(MAX_REFUSED_SNAPSHOTS)] = ()
    on_disk: Annotated[tuple[DiskSnapshot, ...], max_items(MAX_DISK_SNAPSHOTS)] = ()
    not_written: SnapshotWriteFailure | None = None
    disabled_reason: ShortText = ""


@dataclass(frozen=True, kw_only=True)
class SnapshotsRequest(RequestBody):
    """`POST /v1/groups/{g}/nodes/{n}/snapshots`: what a member holds has changed while its round runs."""

    incarnation: Id
    round: PositiveInt
    inventory: SnapshotInventory


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSource:
    """A node that has some of a snapshot, and where its agent serves that; see `HeldSnapshot`."""

    node_id: str
    address: str
    port: int
    key: str = field(default="", repr=False)
    whole: bool = False
    ranks: tuple[RankPart, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CopyOrder:
    """Parts of a sharded snapshot that only `source` has, and another node is to have, too: of the ranks in it."""

    stamp: SnapshotId
    source: SnapshotSource


@dataclass(frozen=True, kw_only=True)
class SnapshotsReply:
    """What all nodes together hold: the newest snapshot that is complete, and what this node is to copy."""

    complete: SnapshotId | None = None
    copy: CopyOrder | None = None


# -- what a round begins from --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StartSnapshot:
    """The snapshot that a round begins from.

    Attributes:
        lost: how many steps of the round before are lost with that; None: nobody who is here knows.
        sources: who has it. A member is told those that it needs, itself first: of what all ranks have alike a few, and
            of ranks' own parts all if the snapshot is sharded, else those of its own ranks.
        on_disk, origin: each member reads it in the directory of `--snapshot-to`, as that job wrote it.
    """

    round: int
    step: int
    world_size: int
    sharded: bool = False
    lost: int | None = None
    sources: tuple[SnapshotSource, ...] = ()
    on_disk: bool = False
    origin: str = ""


@dataclass(frozen=True, kw_only=True)
class JobSnapshotState:
    """What a group keeps of the snapshots of its job.

    Attributes:
        wanted: the one that a person has chosen for the next round.
        undone, undone_before_round: with such a choice all is undone that is newer, and of a round before this one.
        parting: agents that have left, or are about to, and yet serve what they hold, by incarnation: until when
            (seconds on the server's clock).
    """

    origin: str
    wanted: SnapshotId | None = None
    undone: SnapshotId | None = None
    undone_before_round: Count = 0
    parting: Mapping[str, float] = field(default_factory=dict)


# -- what people see -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SnapshotReply:
    """A snapshot of which some nodes have something, or that is on disk.

    Attributes:
        lack: why it is not complete; empty: it is.
        undone: a person has chosen an older one.
        size: of all that there is of it (bytes).
    """

    stamp: SnapshotId
    world_size: int
    sharded: bool
    lack: str = ""
    undone: bool = False
    nodes: NodeList = NO_NODES
    on_disk: bool = False
    size: int = 0


@dataclass(frozen=True, kw_only=True)
class SnapshotListReply:
    """`GET /v1/groups/{g}/snapshots`: the newest first; `next`: a round would begin from it now, maybe as `wanted`."""

    group_id: str
    next: SnapshotId | None = None
    wanted: bool = False
    safe: SnapshotId | None = None
    snapshots: tuple[SnapshotReply, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SafeSnapshotReply:
    """What of a job's work is safe, as people see it.

    Attributes:
        safe: the snapshot from which a round would begin even without any one of the nodes, and `nodes` have it; where
            there is one node, from which it would begin now.
        on_disk: the newest one on disk.
    """

    safe: SnapshotId | None = None
    nodes: NodeList = NO_NODES
    on_disk: SnapshotId | None = None


@dataclass(frozen=True, kw_only=True)
class UseSnapshotRequest(RequestBody):
    """`POST /v1/groups/{g}/snapshots`: the next round begins from the newest complete snapshot of this step."""

    step: Count
