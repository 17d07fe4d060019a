"""Which nodes of a group are ready, and the round that they would form."""

from collections.abc import Iterable, Sequence

from hetrdzv.core.memo import cached, cached_for
from hetrdzv.core.model import Group, Node
from hetrdzv.core.selection.order import former_round
from hetrdzv.core.selection.select import Selection, Shortfall, select
from hetrdzv.protocol.states import NodePhase
from hetrdzv.protocol.texts.addresses import is_loopback

READ = ("spec", "nodes", "drained", "job", "round", "seats", "unreachable", "failed_masters", "failed_rounds")
"""The fields of a group that decide which nodes form its rounds."""


@cached
def ready_nodes(group: Group) -> Sequence[Node]:
    """The nodes that are ready for the next round. A suspect counts until it is lost, but is waited for."""
    job, drained, no_command = group.job, group.drained, group.spec.command is None
    return [
        node
        for node in group.nodes.values()
        if node.phase is NodePhase.READY
        and node.job == job
        and node.leaving is None
        and node.rejected is None
        and not node.not_ready
        and not (no_command and node.wants_command)
        and node.node_id not in drained
    ]


@cached
def not_ready_nodes(group: Group) -> Sequence[Node]:
    """The live nodes whose agents say that they cannot take part in a round."""
    return [
        node
        for node in group.nodes.values()
        if node.not_ready and node.phase is NodePhase.READY and node.job == group.job and node.leaving is None
    ]


@cached_for(*READ)
def next_round(group: Group) -> Selection | Shortfall:
    """What `select` answers for the ready nodes of a group that runs no round."""
    return select(
        group.spec,
        ready_nodes(group),
        group.seats,
        former_round(group),
        group.unreachable,
        group.failed_masters,
        group.used_last,
    )


def stranded(nodes: Iterable[Node]) -> list[Node]:
    """Nodes that offer a loopback address although other nodes are on other hosts, which cannot reach them."""
    nodes = list(nodes)
    loopback = [node for node in nodes if is_loopback(node.address)]
    return loopback if len(loopback) < len(nodes) else []
