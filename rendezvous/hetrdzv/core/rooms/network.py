"""What the nodes of a round found wrong with the network between them: `Round.network`, as its master reported it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from hetrdzv.core.commands import Report
from hetrdzv.core.model import Group, Node, Round
from hetrdzv.core.rooms.room import Room
from hetrdzv.core.rounds.transitions import Work
from hetrdzv.protocol.facts.warnings import AnyWarning
from hetrdzv.protocol.rooms.network import (
    NetworkFound,
    NotAllChecked,
    NotChecked,
    OfNetwork,
    SlowLink,
    SlowNetwork,
    SlowWay,
)


class NetworkRoom(Room):
    """The master of a round says once what was found; what it says of nodes that are no members is dropped."""

    def started(self, work: Work, node: Node, report: Report) -> None:
        current = work.group.active_round
        if report.network is None or current is None or current.network is not None:
            return
        if node.node_id != current.master.node_id:
            return
        network = _of_members(report.network, current)
        if warnings := network.warnings():
            work.change(round=replace(current, network=network))
            for warning in warnings:
                work.say(SlowNetwork(what=warning), node.node_id)

    def found(self, group: Group, current: Round) -> Sequence[AnyWarning]:
        return current.network.warnings() if current.network is not None else ()


def _of_members(network: NetworkFound, current: Round) -> NetworkFound:
    def known(value: OfNetwork) -> bool:
        return all(current.member(node_id) is not None for node_id in _named(value))

    return replace(
        network,
        failed=network.failed if network.failed is not None and known(network.failed) else None,
        links=tuple(filter(known, network.links)),
        ways=tuple(filter(known, network.ways)),
    )


def _named(value: OfNetwork) -> tuple[str, ...]:
    """The ids of the nodes that a value is about."""
    match value:
        case SlowLink():
            return value.node_id, value.first.node_id, value.again.node_id
        case SlowWay():
            return value.node_id, value.reached.node_id
        case NotChecked():
            return (value.master,)
        case NotAllChecked():
            return ()
        case _:
            assert_never(value)
