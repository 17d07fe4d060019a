"""`--check-network`: before the workers of a round start, how fast the network is between its nodes."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from hetagent.feature import Feature, Flags

if TYPE_CHECKING:
    from hetagent.assembly import Node
    from hetagent.job.room import Room
    from hetagent.protocol.line import Line


class CheckNetwork(Feature):
    """`--check-network`."""

    flags: ClassVar[Flags] = {
        "--check-network": {
            "action": "store_true",
            "help": "Before a round with new nodes, measure the bandwidth between nodes and name slow ones; give it "
            "on every node.",
        },
    }

    def __init__(self, args: Namespace, environ: Mapping[str, str]) -> None:
        self._is_wanted: bool = args.check_network

    def room(self, node: "Node", line: "Line", others: "Sequence[Room]") -> "Room | None":
        """The check."""
        if not self._is_wanted:
            return None
        from hetagent.job.between import Once
        from hetagent.job.network.check import NetworkCheck

        group, node_id = node.options.group, node.options.node_id
        return NetworkCheck(group, node_id, lambda: node.place.address, node.tell, Once(node.tell))
