"""A torch rendezvous handler that returns what the server decided: the round's own store, and this node's place."""

import socket
import struct
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import HashStore, Store, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from hetagent.node.network import WILDCARDS
from hetagent.torch_compat.flags import RELEASE
from hetrdzv.protocol.directive import Start

STORE_TIMEOUT = timedelta(seconds=60)

LOOPBACK = "127.0.0.1"
"""Where a socket on all addresses is reached from its own host; an IPv6 one accepts IPv4 as well."""

_VALIDATE, _ADD, _MAGIC = 0, 4, 0x3C85F7CE
"""Of the protocol of TCPStore: two kinds of query, and the word that comes after the first."""

_ANSWER_S = 2.0

LISTENS_WITH_LIBUV = (2, 8)
"""The first release whose newer kind of store can listen on a socket that is open already (pytorch#150215). It says so
when it is asked to, but on the console too; the older kind does the same work with more threads."""


class HetRendezvousHandler(RendezvousHandler):
    """Gives torch's agent the round that the server formed; `group` is torch's run id.

    Every round has a new store, on a socket that this node has held open since it offered the port: so nobody else can
    take the port, and a peer can test it before it starts anything. `hold` opens one.
    """

    def __init__(self, group: str, node_id: str, hold: Callable[[], socket.socket]) -> None:
        self._group = group
        self._node_id = node_id
        self._hold = hold
        self._held: socket.socket | None = None
        self._store: Store | None = None
        self._start: Start | None = None
        self._hosted_at: tuple[str, int] | None = None  # our store, if we are the master

    def offer_port(self) -> int:
        """The port on which this node would host the next round's store; held until that round uses it."""
        if self._held is None:
            self._held = self._hold()
        port: int = self._held.getsockname()[1]
        return port

    def accept_round(self, start: Start) -> None:
        """Take a round as the next one."""
        self._start = start

    @property
    def accepted_start(self) -> Start:
        """This node's place in the round accepted last."""
        assert self._start is not None, "no round has been accepted"
        return self._start

    def next_rendezvous(self) -> RendezvousInfo:
        """The round accepted last; if this node is its master, its store starts here."""
        start = self.accepted_start
        self.close_store()
        # The agents of the other members need no store: the server has decided everything they would ask it.
        self._store = self._open_store(start) if start.master.node_id == self._node_id else HashStore()
        place = RendezvousStoreInfo(master_addr=start.master.address, master_port=start.master.port)
        return RendezvousInfo(self._store, start.group_rank, start.nnodes, place)

    def _open_store(self, start: Start) -> TCPStore:
        assert self._held is not None, "a member has offered a socket"
        listener, self._held = self._held, None
        # Where it listens, not where peers find it: a router in between may not lead back to this host.
        host, port, *_ = listener.getsockname()
        host = LOOPBACK if host in WILDCARDS.values() else host
        self._hosted_at = (host, port)
        return TCPStore(
            host_name=host,
            port=port,
            is_master=True,
            timeout=STORE_TIMEOUT,
            wait_for_workers=False,
            use_libuv=RELEASE >= LISTENS_WITH_LIBUV,
            master_listen_fd=listener.detach(),
        )

    def count_workers(self) -> int | None:
        """How many workers have come to the store of the last round; None: this node does not host it, or unknown.

        Each counts itself there when it opens the store with a world size, as `init_process_group` does; torch's own
        interface does not show the number.
        """
        if self._hosted_at is None:
            return None
        key = b"init/"
        query = struct.pack("=BIBQ", _VALIDATE, _MAGIC, _ADD, len(key)) + key + struct.pack("=q", 0)
        try:
            with socket.create_connection(self._hosted_at, _ANSWER_S) as asked:
                asked.sendall(query)
                answer = asked.recv(8, socket.MSG_WAITALL)
        except OSError:
            return None
        return int(struct.unpack("=q", answer)[0]) if len(answer) == 8 else None

    def close_store(self) -> None:
        """Close the store of the last round."""
        self._store = self._hosted_at = None

    def get_backend(self) -> str:
        return "hetrdzv"

    @property
    def use_agent_store(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nothing to do: the server decides the outcome of a group."""

    def num_nodes_waiting(self) -> int:
        """Always 0: when a joiner is admitted, the server tells the members to stop."""
        return 0

    def get_run_id(self) -> str:
        return self._group

    def shutdown(self) -> bool:
        """Close the store and the held socket."""
        self.close_store()
        if self._held is not None:
            self._held.close()
            self._held = None
        return True
