"""A round after the other for torch's own agent: what its calls mean to the server, and the server's word to it.

torch's agent asks for the next round when its workers have failed, or when we say that nodes wait; it has ended
its workers by then. Everything else has to be read off what it does with the round's store.
"""

import os
import queue
import random
import select
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

from torch.distributed import Store
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from hetagent import network
from hetagent.console import say
from hetagent.handler import STORE_TIMEOUT, HetRendezvousHandler
from hetagent.line import Line
from hetagent.place import Place, patiently
from hetagent.session import Offer, Session
from hetagent.torchrun_callers import failure_of_callers, torchrun_is_calling
from hetagent.torchrun_conf import TORCHS_STOP_TIMEOUT_S, Conf, as_rdzv_conf
from hetagent.torchrun_store import PASSED, PAUSE_S, RoundOverError, RoundStore, look_for, visit
from hetrdzv.access import token_again
from hetrdzv.client import Client
from hetrdzv.wire import DirectiveKind, DirectiveReply, FailureFields

LEAVE_S = 4.0
"""How long the goodbye to the server may take (seconds)."""

OUTCOME_S = 15.0
"""How long an agent whose barrier is passed waits for the server to have heard so of all (seconds)."""

LONGEST_INTERVAL_S = 1.0
"""Other agents are given so long to ask, at most, before the workers of a round that is over end (seconds)."""


class _TimedLine(Line):
    """A line that notes when it handed the last directive over (monotonic seconds)."""

    handed_at = 0.0

    def _hand_over(self, directive: DirectiveReply) -> None:
        self.handed_at = time.monotonic()
        super()._hand_over(directive)


class _Inherited:
    """What workers are to inherit: variables in this process's environment, of one handler at a time."""

    _newest: "ClassVar[_Inherited | None]" = None

    def __init__(self) -> None:
        self._names: set[str] = set()

    def add(self, variables: Mapping[str, str]) -> None:
        os.environ.update(variables)
        self._names |= variables.keys()

    def take_over(self) -> None:
        """Begin anew, also where a handler that is not yet collected left some."""
        former, _Inherited._newest = _Inherited._newest, self
        self.take_back()
        if former is not None:
            former.take_back()

    def take_back(self) -> None:
        while self._names:
            os.environ.pop(self._names.pop(), None)


def _abandon(line: Line, inherited: _Inherited) -> None:
    """What is left to do of a handler that was not shut down; may run in any thread."""
    inherited.take_back()
    line.abandon("its agent is gone")


class TorchrunHandler(HetRendezvousHandler):
    """torch's agent in a job whose rounds a hetserver decides.

    Args:
        token: for the servers.
    """

    def __init__(self, conf: Conf, token: str | None) -> None:
        super().__init__(conf.group, conf.node_id, self._hold_port)
        self._conf = conf
        self._token = token
        self._tell = partial(_tell, conf.node_id)  # bound to nothing: the line must not keep us alive
        self._session: Session | None = None
        self._line: _TimedLine | None = None
        self._place: Place | None = None
        self._inherited = _Inherited()
        self._closed = False
        # the round that torch's agent is in, or is entering
        self._round = 0
        self._in_round = False
        self._succeeded = False  # this node's workers have
        self._passed = False  # those of all nodes have
        self._round_store: RoundStore | None = None
        # what the server said and was not done yet
        self._next: DirectiveReply | None = None
        self._stop: DirectiveReply | None = None
        self._exit: DirectiveReply | None = None
        # torch's monitor_interval, as we see it
        self._asked_at = 0.0
        self._interval_s = LONGEST_INTERVAL_S  # until it is seen; a round may end before

    # -- what torch's agent calls ----------------------------------------------------------------------------

    def next_rendezvous(self) -> RendezvousInfo:
        """The next round; the workers of the one before are gone.

        Blocks until there is one. Where the old one has not been ended by the server, workers of this node
        failed: then the others are told so.

        Raises:
            RendezvousConnectionError: no server takes this node; says why.
            RendezvousClosedError: the job failed or was cancelled; says why.
            RendezvousGracefulExitError: the job succeeded without this node, or it was drained.
            SystemExit: the same under torchrun, whose launcher takes no graceful end.
        """
        if self._closed:
            raise RendezvousClosedError(f"this node has left group '{self._group}': make another handler")
        line = self._line or self._connect()
        self._heed(line)
        self._tell_failure(line)
        while True:
            self._in_round = False
            self.release()
            self._stop = None
            line.ready(self._round, self._offered_port(), 0)
            directive = self._next_start(line)
            if directive is not None and (info := self._enter(line, directive)) is not None:
                return info

    def num_nodes_waiting(self) -> int:
        """1 when this node has to ask for the next round, since the server ended this one; else 0.

        Never asks the server. Waits, once per round, until every other agent has asked as well: workers whose
        peers end before their own agent has noticed look as if they had failed, which torch counts.
        """
        if self._line is None:
            return 0
        self._heed(self._line)
        now = time.monotonic()
        if not (self._in_round and self._is_over):
            self._interval_s = min(now - self._asked_at, LONGEST_INTERVAL_S)
            self._asked_at = now
            return 0
        time.sleep(min(max(0.0, self._line.handed_at + self._interval_s - now), LONGEST_INTERVAL_S))
        return 1

    def is_closed(self) -> bool:
        return self._closed or self._exit is not None

    def shutdown(self) -> bool:
        """Say how it went, and leave. Says that workers failed, unless the exit barrier was entered."""
        self._closed = True
        line, self._line = self._line, None
        if line is not None:
            self._heed(line)
            if self._succeeded:
                self._await_outcome(line)
            else:
                self._tell_failure(line)
            line.leave("its agent has finished" if self._succeeded else "its agent gave up", LEAVE_S)
            line.close()
            self._leaver.detach()
        self._inherited.take_back()
        return super().shutdown()

    def release(self) -> None:
        """Close the store of the round; the agent may keep what it has of it."""
        super().release()
        if self._round_store is not None:
            self._round_store.close()
            self._round_store = None

    # -- towards the server ----------------------------------------------------------------------------------

    def _connect(self) -> _TimedLine:
        conf, token = self._conf, self._token
        tell = self._tell

        def client() -> Client:
            return Client(
                conf.servers, token=token, renew_token=lambda: token_again(conf.token_file), tls=conf.tls
            )

        try:
            fixed = conf.local_addr is not None
            self._place = patiently(
                lambda: Place(
                    lambda: network.offered_address(conf.local_addr, conf.interface, conf.servers),
                    fixed=fixed,
                ),
                conf.connect_timeout_s,
                tell,
            )
        except network.NetworkError as error:
            raise RendezvousConnectionError(as_rdzv_conf(str(error))) from None
        offer = Offer(slots=conf.slots, address=self._place.address, spec=conf.spec)
        self._session = Session(
            conf.group,
            conf.node_id,
            uuid.uuid4().hex,
            offer,
            random.Random(),
            connect_timeout_s=conf.connect_timeout_s,
        )
        self._line = line = _TimedLine(self._session, client, tell)
        # After a signal torch does not call shutdown(): a program that goes on must not seem to take part.
        self._leaver = weakref.finalize(self, _abandon, line, self._inherited)
        self._leaver.atexit = False  # the cut connection says it
        line.start()
        tell(f"group '{conf.group}' at {', '.join(conf.servers)}: offering {self._place.address}")
        stop_timeout_s = conf.spec.stop_timeout_s
        if stop_timeout_s is not None and stop_timeout_s < TORCHS_STOP_TIMEOUT_S:
            tell(
                f"warning: stop_timeout_s={stop_timeout_s:g} is less than the {TORCHS_STOP_TIMEOUT_S:g} s that torch "
                "gives workers to stop before a restart: workers of the old round may still run beside the new ones"
            )
        return line

    def _hold_port(self) -> socket.socket:
        assert self._place is not None, "connected before"
        return network.hold_port(self._place.address, self._conf.port_range)

    def _offered_port(self) -> int:
        """Hold a port on the address that this node has now.

        Raises:
            RendezvousConnectionError: there is none.
        """
        assert self._place is not None
        assert self._session is not None
        super().shutdown()  # peers may wait at a socket that was held for a round which did not come about
        if self._place.moved():
            self._tell(f"this node has another address; offering {self._place.address} from now on")
            self._session.offer = replace(self._session.offer, address=self._place.address)
        self._inherited.take_over()
        self._inherited.add(network.socket_env(self._place.interface, os.environ))
        try:
            return self.offer()
        except network.NetworkError as error:
            what = f"node '{self._node_id}' cannot offer a port for the next round: {error}"
            raise RendezvousConnectionError(as_rdzv_conf(what)) from None

    def _tell_failure(self, line: Line) -> None:
        """Workers of this node failed, if it is in a round that nobody has ended."""
        if self._in_round and not self._is_over:
            failure = failure_of_callers()
            line.failed(self._round, failure, time.monotonic())

    @property
    def _is_over(self) -> bool:
        return self._stop is not None or self._exit is not None

    def _heed(self, line: Line) -> None:
        """Take what the server said; what is old news is dropped."""
        for directive in line.take():
            match directive.kind:
                case DirectiveKind.START if directive.round > self._round:
                    self._next = directive
                case DirectiveKind.STOP if directive.round > self._round or (
                    self._in_round and directive.round == self._round
                ):
                    self._stop, self._next = directive, None
                    self._tell(f"round {directive.round} is over: {directive.why}")
                case DirectiveKind.EXIT:
                    self._exit, self._next = directive, None
                    self._tell(directive.why)

    def _listen(self, line: Line, *fds: int, timeout_s: float | None = None) -> None:
        """Wait for the server to say something, or one of other descriptors to become readable."""
        poll = select.poll()
        for fd in (line.fileno(), *fds):
            poll.register(fd, select.POLLIN)
        poll.poll(None if timeout_s is None else 1000 * timeout_s)
        self._heed(line)

    def _next_start(self, line: Line) -> DirectiveReply | None:
        """Wait for a round; None: one came, and was over before this node could enter it."""
        while self._next is None:
            if self._exit is not None:
                raise _exit_error(self._exit)
            if self._stop is not None:
                self._round = max(self._round, self._stop.round)
                return None
            self._listen(line)
        directive, self._next = self._next, None
        return directive

    def _await_outcome(self, line: Line) -> None:
        """Keep the store until nobody needs it: the server has heard of every node that it succeeded.

        Where torch's barrier was given up, only the master's agent has to stay for the others.
        """
        stays = not self._passed and self.start.master.node_id == self._node_id
        until = time.monotonic() + OUTCOME_S
        while not self._is_over and (stays or self._passed) and (stays or time.monotonic() < until):
            self._listen(line, timeout_s=None if stays else max(0.0, until - time.monotonic()))

    # -- the round's store -----------------------------------------------------------------------------------

    def _enter(self, line: Line, directive: DirectiveReply) -> RendezvousInfo | None:
        """Meet the other agents of a round in its store; None: that did not come about.

        Only when all are there does torch's agent get it: what it then asks of the store finds all answers.
        """
        start = self.accept(directive)
        self._round, self._in_round, self._succeeded, self._passed = directive.round, True, False, False
        self._asked_at = time.monotonic()
        master = f"{start.master.node_id} ({network.host_port(start.master.address, start.master.port)})"
        self._tell(
            f"round {directive.round}: node {start.group_rank} of {start.nnodes}, master {master}, "
            f"restart {start.restart_count}"
        )
        here = f"hetrdzv/round_{directive.round}/"
        hosted = self._host(start) if start.master.node_id == self._node_id else None

        def meet(over: threading.Event) -> Store:
            store = hosted or visit(start)
            if not over.is_set():
                store.set(f"{here}{start.group_rank}", start.master.node_id)
            look_for(
                store, [f"{here}{rank}" for rank in range(start.nnodes)], over, STORE_TIMEOUT.total_seconds()
            )
            return store

        try:
            store = self._while_it_lasts(line, meet)
        except RoundOverError:
            return None
        except (RuntimeError, TimeoutError) as error:
            what = f"the agents of round {directive.round} did not meet in its store: {error}"
            self._tell(what)
            line.failed(self._round, FailureFields(local_rank=-1, rank=-1, message=what), time.monotonic())
            return None
        self._inherited.add({"HET_ROUND": str(directive.round), "HET_NODE_ID": self._node_id})
        self._round_store = RoundStore(store, self._on_success, self._await_barrier, self._during_round)
        line.started(self._round)
        place = RendezvousStoreInfo(master_addr=start.master.address, master_port=start.master.port)
        return RendezvousInfo(cast("Store", self._round_store), start.group_rank, start.nnodes, place)

    def _on_success(self) -> None:
        self._succeeded = True
        assert self._line is not None
        self._line.succeeded(self._round)

    def _await_barrier(self, store: Store, timeout_s: float) -> None:
        """torch's exit barrier, which ends early when the round does."""
        assert self._line is not None
        try:
            self._while_it_lasts(self._line, lambda over: look_for(store, [PASSED], over, timeout_s))
        except RuntimeError as error:
            self._await_word(self._line)
            outcome = self._exit.outcome if self._exit is not None else None
            if outcome != "succeeded":  # else the master was only faster than we
                why = self._stop or self._exit
                raise RoundOverError(why.why if why is not None else str(error)) from None
        self._passed = True

    def _during_round(self, what: Callable[[threading.Event], Any]) -> Any:
        """What torch's agent does in the store before its workers start.

        Raises:
            RoundOverError: the server ended the round first, perhaps because the store is gone.
        """
        assert self._line is not None
        try:
            return self._while_it_lasts(self._line, what)
        except RuntimeError:
            self._await_word(self._line)
            if not self._is_over:
                raise
            raise RoundOverError(f"round {self._round} is over") from None

    def _await_word(self, line: Line) -> None:
        """Give the server a moment to explain why the store went away."""
        until = time.monotonic() + 2.0
        while not self._is_over and time.monotonic() < until:
            self._listen(line, timeout_s=max(0.0, until - time.monotonic()))

    def _while_it_lasts(self, line: Line, what: Callable[[threading.Event], Any]) -> Any:
        """Do something in a thread, since stores do not answer while their master hangs.

        Args:
            what: gets an event that is set when nobody waits for it any more.

        Raises:
            RoundOverError: the server ended the round first.
        """
        answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        over = threading.Event()
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)

        def work() -> None:
            try:
                answers.put((what(over), None))
            except BaseException as error:  # its traceback, which has `answers`, would keep the store alive
                answers.put((None, error.with_traceback(None)))
            os.close(write_fd)

        thread = threading.Thread(target=work, name="hetrdzv-store", daemon=True)
        try:
            thread.start()
            while answers.empty():
                if self._is_over:
                    raise RoundOverError(f"round {self._round} is over")
                self._listen(line, read_fd)
        finally:
            over.set()
            # It lets go of the store, which may hang. Our own does not, and has to be gone before the next offer.
            thread.join(None if self.start.master.node_id == self._node_id else 2 * PAUSE_S)
            os.close(read_fd)
        result, error = answers.get()
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback has this frame
        return result


def _tell(node_id: str, text: str) -> None:
    """Show it to the person at the terminal."""
    say("\n".join(f"hetrdzv[{node_id}]: {line}" for line in as_rdzv_conf(text).splitlines()))


def _exit_error(directive: DirectiveReply) -> BaseException:
    """What torch's agent is to end with; torchrun with hetagent's exit status where nothing went wrong."""
    if directive.outcome == "succeeded" or directive.reason == "drained":
        # torch 2.13: launch_agent() asks what LocalElasticAgent.run() returned then, which is None
        if torchrun_is_calling():
            return SystemExit(directive.exit_code)
        return RendezvousGracefulExitError(as_rdzv_conf(directive.why))
    failed = RendezvousClosedError if directive.round or directive.outcome else RendezvousConnectionError
    return failed(as_rdzv_conf(directive.why))
