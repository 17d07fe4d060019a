"""The rendezvous handler that torch's own agent calls: turns its calls into reports, and directives into its rounds.

torch's agent asks for the next round when its workers have failed or when we say that nodes are waiting; it
has stopped its workers. How they fared otherwise has to be inferred from what it does with the round's store.
"""

import os
import socket
import time
import weakref
from dataclasses import replace
from functools import partial
from typing import cast

from torch.distributed import Store
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from hetagent.node import names, network
from hetagent.session.requests import make_round_report
from hetagent.torch_compat.callers import find_ending_signal, find_worker_spec
from hetagent.torchrun.conf import JobConf
from hetagent.torchrun.connection import TorchrunConnection, make_connection
from hetagent.torchrun.messages import find_first_failure, log, translate_flags
from hetagent.torchrun.store import RoundOverError, RoundStore
from hetagent.workers.failures import MAX_CHARACTERS
from hetagent.workers.store import HetRendezvousHandler
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.rounds import WorkerFailure
from hetrdzv.protocol.states import ReportKind


class TorchrunHandler(HetRendezvousHandler):
    """One node's part in a job whose rounds a hetserver decides and whose workers torch's agent runs."""

    def __init__(self, conf: JobConf) -> None:
        node_id, release = names.claim_node_id(
            conf.node_id, conf.group, conf.access.servers, given=conf.node_id_given
        )
        self._release_node_id = weakref.finalize(self, release)  # after a signal torch calls no shutdown()
        conf = replace(conf, node_id=node_id)
        super().__init__(conf.group, conf.node_id, self._hold_port)
        self._conf = conf
        self._log = partial(log, conf.node_id)
        self._connection: TorchrunConnection | None = None  # until this node has left
        self._closed: str | None = None  # why this handler takes no part any more
        self._succeeded = False  # this node's workers have
        self._round_store: RoundStore | None = None

    # -- what torch's agent calls ----------------------------------------------------------------------------

    def next_rendezvous(self) -> RendezvousInfo:
        """Block until the next round; the workers of the last one are gone.

        If the server has not ended the last round, workers of this node have failed: reports that. Raises torch's
        errors of a rendezvous, or SystemExit under torchrun, whose launcher cannot handle a graceful exit.
        """
        if self._closed is not None:
            self._leave_group("its agent has closed the rendezvous")
            raise RendezvousClosedError(self._closed)
        connection = self._connection or self._connect_to_server()
        connection.take_directives()
        self._report_failure(connection)
        while True:
            connection.in_round = False
            self.close_store()
            connection.stop = None
            connection.server.set_ready(connection.round, self._hold_offered_port(connection), 0)
            try:
                start = connection.wait_for_start()
            except (RendezvousError, SystemExit) as error:
                self._closed = str(error)
                # A program may keep this handler: a new job need not wait for it.
                self._leave_group("it was told to exit")
                raise
            if start is not None and (info := self._enter_round(connection, start)) is not None:
                return info

    def num_nodes_waiting(self) -> int:
        """1 if this node has to ask for the next round because the server ended this one; else 0.

        Never asks the server. Once per round, waits until every other agent has asked as well: workers whose peers
        end before their own agent has noticed look as if they had failed, and torch counts that.
        """
        connection = self._connection
        if connection is None:
            return 0
        connection.take_directives()
        if not (connection.in_round and connection.ending_directive):
            return 0
        time.sleep(max(0.0, connection.server.handed_at + connection.interval_s - time.monotonic()))
        return 1

    def is_closed(self) -> bool:
        """Whether the job is over for this node, as far as the server has said."""
        if self._connection is not None:
            self._connection.take_directives()
        return self._closed is not None or (
            self._connection is not None and self._connection.exit is not None
        )

    def set_closed(self) -> None:
        """Take part in no more rounds.

        torch's agent never calls this. Other nodes go on: `hetctl cancel` ends a job for all (pytorch#67742).
        """
        self._closed = f"this handler has closed the rendezvous of group '{self._group}'"

    def shutdown(self) -> bool:
        """Report how it went, and leave.

        Unless torch's agent has entered its exit barrier or got a signal, this node's workers have failed.
        """
        self._closed = f"this node has left group '{self._group}': create another handler"
        if (connection := self._connection) is not None:
            connection.take_directives()
            if self._succeeded:
                if self.accepted_start.master.node_id == self._node_id:
                    connection.wait_for_end()  # the others' workers may need the store
                why = "its agent has finished"
            elif (signal := find_ending_signal()) is not None:
                why = f"its agent got {signal}"
            else:
                self._report_failure(connection, final=True)
                why = "its agent gave up"
            self._leave_group(why)
        self._release_node_id()
        return super().shutdown()

    def close_store(self) -> None:
        """Close the round's store, even though torch's agent keeps its reference to it."""
        super().close_store()
        if self._round_store is not None:
            self._round_store.close()
            self._round_store = None

    # -- towards the server ----------------------------------------------------------------------------------

    def _connect_to_server(self) -> TorchrunConnection:
        conf, log = self._conf, self._log
        try:
            connection = make_connection(conf, find_worker_spec(self), log)
        except network.NetworkError as error:
            raise RendezvousConnectionError(translate_flags(str(error))) from None
        self._connection = connection
        os.environ.update(connection.place.socket_env(os.environ))
        connection.server.start()
        log(f"group '{conf.group}' at {', '.join(conf.access.servers)}: offering {connection.place.address}")
        return connection

    def _leave_group(self, why: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.server.leave(why)
            connection.server.close()

    def _hold_port(self) -> socket.socket:
        assert self._connection is not None, "not connected"
        return network.hold_port(self._connection.place.address, self._conf.port_range)

    def _hold_offered_port(self, connection: TorchrunConnection) -> int:
        """Hold a port on this node's current address."""
        super().shutdown()  # peers may wait at a socket that was held for a round which did not come about
        loss = connection.place.describe_address_loss()
        if loss and not connection.server.session.is_server_away:  # else it may come back
            raise RendezvousConnectionError(f"node '{self._node_id}' leaves: {loss}")
        try:
            return self.offer_port()
        except network.NetworkError as error:
            what = f"node '{self._node_id}' cannot offer a port for the next round: {error}"
            raise RendezvousConnectionError(translate_flags(what)) from None

    def _report_failure(self, connection: TorchrunConnection, *, final: bool = False) -> None:
        """Report that workers of this node failed, if it is in a round that nobody has ended.

        `final`: torch's agent has no restart left. That is also reported of a round that has ended: else the others
        could only blame this node for leaving.
        """
        if connection.in_round and not (connection.exit if final else connection.ending_directive):
            failure = replace(find_first_failure(), final=final)
            connection.server.send(make_round_report(ReportKind.FAILED, connection.round, failure=failure))

    # -- a round ---------------------------------------------------------------------------------------------

    def _enter_round(self, connection: TorchrunConnection, directive: Directive) -> RendezvousInfo | None:
        """Begin a round; its store is on the master. None: it cannot start there, so the round has failed."""
        start = directive.start
        assert start is not None, "a start directive has one"
        self.accept_round(start)
        connection.round, connection.in_round = directive.round, True
        self._succeeded = False
        master = (
            f"{start.master.node_id} ({network.format_host_port(start.master.address, start.master.port)})"
        )
        self._log(
            f"round {directive.round}: node rank {start.group_rank} of {start.nnodes}, master {master}, "
            f"restart {start.restart_count}"
        )
        os.environ.update({"HET_ROUND": str(directive.round), "HET_NODE_ID": self._node_id})
        try:
            info = super().next_rendezvous()
        except (RuntimeError, TimeoutError) as error:
            what = f"cannot open the store of round {directive.round}: {error}"
            self._log(what)
            failure = WorkerFailure(local_rank=-1, rank=-1, message=what[:MAX_CHARACTERS])
            connection.server.send(make_round_report(ReportKind.FAILED, directive.round, failure=failure))
            return None
        self._round_store = RoundStore(
            info.store, start, partial(self._report_success, connection), partial(_await_barrier, connection)
        )
        connection.server.send(make_round_report(ReportKind.STARTED, directive.round))
        store = cast("Store", self._round_store)
        place = RendezvousStoreInfo(master_addr=start.master.address, master_port=start.master.port)
        return RendezvousInfo(store, info.rank, info.world_size, place)

    def _report_success(self, connection: TorchrunConnection) -> None:
        self._succeeded = True
        connection.server.send(make_round_report(ReportKind.SUCCEEDED, connection.round))


def _await_barrier(connection: TorchrunConnection, timeout_s: float) -> None:
    """torch's exit barrier, which ends early when the round does."""
    if not connection.wait_for_end(timeout_s):
        return
    if connection.ending_directive is None:
        raise TimeoutError(f"not all nodes have succeeded within {timeout_s:g} s")
    if connection.ending_directive.outcome != "succeeded":
        raise RoundOverError(connection.ending_directive.why)
