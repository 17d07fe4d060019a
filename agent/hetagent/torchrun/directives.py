"""The server's directives to one node, as far as torch's agent has not acted on them yet, and waiting for them."""

import select
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from hetagent.torchrun.background import Background, Call
from hetagent.torchrun.line import PluginLine
from hetagent.torchrun.messages import ending, exit_error
from hetagent.torchrun.store import RoundOverError
from hetrdzv.protocol.directive import DirectiveReply
from hetrdzv.protocol.states import DirectiveKind

EXPLAIN_S = 2.0
"""How long the server may take to say why a round's store went away (seconds)."""

T = TypeVar("T")


class _Readable(Protocol):
    def fileno(self) -> int: ...


class Directives:
    """What the server wants of this node. Used by the thread of torch's agent only.

    Args:
        line: the connection to the server.
        tell: shows a message to the person at the terminal.

    Attributes:
        round: the round that torch's agent is in, or was in last; 0 before the first.
        in_round: whether it is in that round, or entering it.
        start: a round to enter.
        stop: why the round is over.
        exit: why this node has no part in the job any more.
    """

    def __init__(self, line: PluginLine, tell: Callable[[str], None]) -> None:
        self.line = line
        self._tell = tell
        self.round = 0
        self.in_round = False
        self.start: DirectiveReply | None = None
        self.stop: DirectiveReply | None = None
        self.exit: DirectiveReply | None = None

    @property
    def over(self) -> DirectiveReply | None:
        """What ended the round, if anything has."""
        return self.exit or self.stop

    def heed(self) -> None:
        """Take what the server has said; directives about earlier rounds are dropped."""
        for directive in self.line.take():
            match directive.kind:
                case DirectiveKind.START if directive.round > self.round:
                    self.start = directive
                case DirectiveKind.STOP if directive.round > self.round or (
                    self.in_round and directive.round == self.round
                ):
                    self.stop, self.start = directive, None
                    self._tell(f"round {directive.round} is over: {directive.why}")
                case DirectiveKind.EXIT:
                    self.exit, self.start = directive, None
                    self._tell(ending(directive))

    def wait(self, *others: _Readable, timeout_s: float | None = None) -> None:
        """Wait for a directive, or until one of `others` becomes readable."""
        poll = select.poll()
        for readable in (self.line, *others):
            poll.register(readable.fileno(), select.POLLIN)
        poll.poll(None if timeout_s is None else 1000 * timeout_s)
        self.heed()

    def wait_until_over(self, timeout_s: float | None) -> None:
        """Wait until the round is over, at most `timeout_s` (seconds)."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.over and (until is None or time.monotonic() < until):
            self.wait(timeout_s=None if until is None else max(0.0, until - time.monotonic()))

    def next_start(self) -> DirectiveReply | None:
        """Wait for a round; None if it was over before this node could enter it.

        Raises:
            RendezvousError, SystemExit: this node has to exit; see `exit_error`.
        """
        while self.start is None:
            if self.exit is not None:
                raise exit_error(self.exit)
            if self.stop is not None:
                self.round = max(self.round, self.stop.round)
                return None
            self.wait()
        directive, self.start = self.start, None
        return directive

    def while_it_lasts(self, call: Call[T], linger_s: float | None) -> T:
        """Make a call in a thread; wait for it no longer than the round lasts.

        Args:
            call, linger_s: see `Background`.

        Raises:
            RoundOverError: the server ended the round first.
        """
        with Background(call, linger_s) as calling:
            while not calling.done:
                if self.over:
                    raise RoundOverError(f"round {self.round} is over")
                self.wait(calling)
        return calling.result()

    def explain(self) -> DirectiveReply | None:
        """What ended the round, after its store went away; the server gets a moment to say so."""
        self.wait_until_over(EXPLAIN_S)
        return self.over
