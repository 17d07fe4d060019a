"""A node's connection to the servers of its job: the address it offers there, and what torch's agent has yet to do."""

import hashlib
import os
import random
import time
import uuid
from collections.abc import Callable
from math import inf

from torch.distributed.elastic.agent.server.api import WorkerSpec

from hetagent.node.gpu.driver import find_versions
from hetagent.node.network import AdvertisedAddress, find_address
from hetagent.node.self_pipe import wait_readable
from hetagent.session.connection import ServerConnection
from hetagent.session.session import Session
from hetagent.torchrun.conf import JobConf
from hetagent.torchrun.messages import format_exit, make_exit_error
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.requests import JoinRequest
from hetrdzv.protocol.states import DirectiveKind
from hetrdzv.protocol.texts.ids import is_id

AWAY_S = 120.0
"""For how long no server may answer while a node whose workers have succeeded waits for the others (seconds): longer
than the only server takes to restart. A node that left before would not be known to have succeeded, but taken for lost,
and the others' healthy workers stopped. torch's exit barrier waits for 300 s at most."""

LONGEST_INTERVAL_S = 1.0
"""The longest `monitor_interval` of torch's agents that is waited for when a round ends (seconds)."""

LOOK_S = 0.5
"""How often to look whether one does (seconds)."""


class TorchrunConnection:
    """What this node offers the server, and what the server wants of it. Used by the thread of torch's agent only.

    Attributes:
        place: the address that this node offers.
        server: not started yet.
        interval_s: after which all of torch's agents have asked for news, which have the same `monitor_interval`.
        round: the round that torch's agent is in, or was in last; 0 before the first.
        in_round: whether it is in that round, or entering it.
        start: a round to enter.
        stop: why the round is over.
        exit: why this node has no part in the job any more.
    """

    def __init__(
        self,
        place: AdvertisedAddress,
        server: ServerConnection,
        log: Callable[[str], None],
        interval_s: float = LONGEST_INTERVAL_S,
    ) -> None:
        self.place = place
        self.server = server
        self.interval_s = interval_s
        self._log = log
        self.round = 0
        self.in_round = False
        self.start: Directive | None = None
        self.stop: Directive | None = None
        self.exit: Directive | None = None

    @property
    def ending_directive(self) -> Directive | None:
        """What ended the round, if anything has."""
        return self.exit or self.stop

    def take_directives(self) -> None:
        """Take what the server has said; directives about earlier rounds are dropped."""
        for directive in self.server.take_directives():
            match directive.kind:
                case DirectiveKind.START if directive.round > self.round:
                    self.start = directive
                case DirectiveKind.STOP if directive.round > self.round or (
                    self.in_round and directive.round == self.round
                ):
                    self.stop, self.start = directive, None
                    self._log(f"round {directive.round} is over: {directive.why}")
                case DirectiveKind.EXIT:
                    self.exit, self.start = directive, None
                    self._log(format_exit(directive))

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for a directive."""
        wait_readable([self.server], timeout_s)
        self.take_directives()

    def wait_for_end(self, timeout_s: float = inf) -> bool:
        """Wait until the round is over, at most `timeout_s` (seconds), or no server has answered for a while.

        Returns:
            False if none has: it will not say that the round is over.
        """
        now = away_since = time.monotonic()
        until = now + timeout_s
        while not self.ending_directive and now < until:
            self.wait(min(LOOK_S, until - now))
            now = time.monotonic()
            if not self.server.session.is_server_away:
                away_since = now
            elif now >= away_since + AWAY_S:
                self._log(f"no server has answered for {AWAY_S:g} s: not waiting for the other nodes")
                return False
        return True

    def wait_for_start(self) -> Directive | None:
        """Wait for a round; None if it was over before this node could enter it."""
        while self.start is None:
            if self.exit is not None:
                raise make_exit_error(self.exit)
            if self.stop is not None:
                self.round = max(self.round, self.stop.round)
                return None
            self.wait()
        directive, self.start = self.start, None
        return directive


def make_connection(conf: JobConf, spec: WorkerSpec | None, log: Callable[[str], None]) -> TorchrunConnection:
    """The connection of a node; see `TorchrunConnection`.

    Raises:
        NetworkError: this node has no address to offer.
    """
    place = find_address(conf.local_addr, conf.interface, conf.access.servers, conf.connect_timeout_s, log)
    offer = JoinRequest(
        incarnation=uuid.uuid4().hex,
        slots=spec.local_world_size if spec is not None else 1,
        role=_make_role_id(spec.role) if spec is not None else "default",
        address=place.address,
        port=1,  # until one is held
        device=find_versions(),
        spec=conf.spec,
    )
    session = Session(
        conf.group, conf.node_id, offer, random.Random(), connect_timeout_s=conf.connect_timeout_s
    )
    # twice, since torch's loop does more than to wait
    interval_s = min(2 * spec.monitor_interval if spec is not None else inf, LONGEST_INTERVAL_S)
    return TorchrunConnection(place, ServerConnection(session, conf.access.client, log), log, interval_s)


def _make_role_id(name: str) -> str:
    """The id that stands for a role on the server, which only compares them; torchrun takes any name."""
    return name if is_id(name) else f"role-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
