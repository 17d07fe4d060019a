"""Between two rounds: whether this node can take part in the next one, and what it offers to it."""

from collections.abc import Callable, Collection, Iterable

from hetagent.errors import AgentError
from hetagent.health.readiness import Readiness
from hetagent.launch.base import Launch
from hetagent.node.network import NetworkError
from hetagent.runloop.ports import Ports
from hetagent.session.line import Line


class Once:
    """Shows each warning once.

    Args:
        tell: shows one line to the person at the terminal.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told: set[str] = set()

    def __call__(self, warnings: Iterable[str]) -> None:
        for text in warnings:
            if text not in self._told:
                self._told.add(text)
                self._tell(f"warning: {text}")


class Between:
    """What this node does from the end of a round until the next one.

    Args:
        node_id: this node's.
        line: where it joins.
        readiness: whether it can take part in a round.
        ports: those that it offers.
        launch: turns its part of a round into a command.
        foresee: has everything get ready for the first round.
        tell: shows one line to the person at the terminal.
        warn: shows warnings.
    """

    def __init__(
        self,
        *,
        node_id: str,
        line: Line,
        readiness: Readiness,
        ports: Ports,
        launch: Launch,
        foresee: Callable[[], None],
        tell: Callable[[str], None],
        warn: Callable[[Iterable[str]], None],
    ) -> None:
        self.readiness = readiness
        self._node_id = node_id
        self._line = line
        self._ports = ports
        self._launch = launch
        self._foresee = foresee
        self._tell = tell
        self._warn = warn
        self._after = 0
        self._is_prepared = False  # for the first round
        self._is_offered = False  # the line has been told that the workers are gone
        self._not_ready = ""  # why this node takes part in no round

    def begin(self, after: int, pids: Collection[int]) -> str:
        """A round is over and its workers are gone; see `look`.

        Args:
            after: its number.
            pids: those that its workers had.
        """
        self._after, self._is_offered = after, False
        self.readiness.ask(pids)
        return self.look()

    def look(self) -> str:
        """Join if this node can take part in a round, or say why it cannot.

        Returns:
            why it never will; empty: it may.

        Raises:
            AgentError: there is no free port.
        """
        for verdict in self.readiness.take():
            self._warn(verdict.warnings)
            if verdict.fatal:
                return verdict.why
            if verdict.why:
                self._tell(f"this node is not ready: {verdict.why}; checking again until it is")
            elif self._not_ready:
                self._tell("this node is ready")
            self._not_ready = verdict.why
            if self._is_offered:
                self._line.change_readiness(verdict.why)
            else:
                self._offer()
        return ""

    def _offer(self) -> None:
        self._is_offered = True
        self._launch.end()
        try:
            port, script_port = self._ports.offer()
        except NetworkError as error:
            who = f"node '{self._node_id}'"
            raise AgentError(f"{who} cannot offer a port for the next round: {error}") from None
        self._line.ready(self._after, port, script_port, self._not_ready)
        self.prepare()

    def prepare(self) -> None:
        """Get ready for the first round, once."""
        if not self._is_prepared:
            self._is_prepared = True
            self._foresee()
