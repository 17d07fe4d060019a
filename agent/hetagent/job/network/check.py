"""Runs the check of a round in a thread beside the run loop; whatever happens, the round goes on after it."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hetagent.job.network.master import Master
from hetagent.job.network.member import Me, Message, Result, accept, converse, take_part
from hetagent.job.room import Room
from hetagent.launch.base import Assignment
from hetagent.node.network import WILDCARDS
from hetagent.node.waker import Waker
from hetrdzv.protocol.directive import StartReply
from hetrdzv.protocol.facts.parts import quoted
from hetrdzv.protocol.rooms.network import NetworkFound, NotChecked
from hetrdzv.protocol.states import ReportKind
from hetrdzv.words.network import problem, spread

PATIENCE_S = 25.0
"""How long a node waits for anything from the master (seconds): for the other members, then for the measurements."""

WITHIN_S = 40.0
"""How long the check of a round may take (seconds)."""

LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


class NetworkCheck(Room):
    """The checks of one agent, one at a time.

    Readable (`fileno`) when a check is over. Nothing here blocks the caller: a check that is to stop waits for
    nothing, not even for a look-up (`member.py`).

    Args:
        group, node_id: who this agent is.
        address: returns the address that this node offers.
        tell: shows one line to the person at the terminal.
        warn: shows warnings.

    Attributes:
        wanted: whether the next round is to be checked; no longer once a node has not taken part, as others would have
            to wait for it again and again.
    """

    def __init__(
        self,
        group: str,
        node_id: str,
        address: Callable[[], str],
        tell: Callable[[str], None] = lambda text: None,
        warn: Callable[[Iterable[str]], None] = lambda warnings: None,
    ) -> None:
        self._group = group
        self._node_id = node_id
        self._address = address
        self._tell = tell
        self._warn = warn
        self._assignment: Assignment | None = None
        self._found: NetworkFound | None = None  # in this round, for its master's report
        self.wanted = True
        self._fresh = True
        self._result: Result | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Result] | None = None
        self._waker = Waker()

    def fileno(self) -> int:
        """A descriptor that is readable when a check is over."""
        return self._waker.fileno()

    def enter(self, assignment: Assignment) -> None:
        self.end()
        self._assignment, listener = assignment, assignment.script_port
        if self.wanted and assignment.start.nnodes > 1 and listener is not None:
            self.check(assignment.round, assignment.start, listener)

    def holds_start(self) -> bool:
        """Whether a check is under way, or its result was not taken yet."""
        return self._thread is not None

    def look(self) -> None:
        """Show what the check has found, if it is over."""
        if (result := self.take()) is None or self._assignment is None:
            return
        if result.spread is not None:
            self._tell(f"round {self._assignment.round}: network: {spread(result.spread)}")
        warnings = result.found.warnings()
        self._warn(map(problem, warnings))
        self._found = result.found if warnings and self._assignment.is_master else None

    def report(self, kind: ReportKind) -> Mapping[str, Any]:
        """What is slow, with the master's report of the start."""
        return {"network": self._found} if kind is ReportKind.STARTED else {}

    def check(self, number: int, start: StartReply, listener: socket.socket) -> None:
        """Check the network of a round, before its workers start.

        Args:
            listener: listens on the port that this node offers to scripts, and is left as it was.
        """
        self.end()
        port = listener.getsockname()[1]
        me = Me(self._group, number, self._node_id, start.group_rank, self._address(), port, self._fresh)
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(me, start, listener.dup(), ready), name="hetagent-network", daemon=True
        )
        self._thread.start()
        ready.wait()

    def take(self) -> Result | None:
        """What the check has found, once, when it is over."""
        self._waker.clear()
        if self._thread is None or self._result is None:
            return None
        self._thread.join()
        result, self._thread, self._result = self._result, None, None
        return result

    def end(self) -> None:
        """Stop a check that is under way: its round is over."""
        self._found = None
        if self._thread is None:
            return
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
        self.take()
        self._thread = None

    def close(self) -> None:
        self.end()
        self._waker.close()

    # -- the thread ------------------------------------------------------------------------------------------

    def _run(self, me: Me, start: StartReply, listener: socket.socket, ready: threading.Event) -> None:
        async def check() -> Result:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            ready.set()
            async with asyncio.timeout(WITHIN_S):
                return await _check(me, start, listener)

        try:
            with listener:
                try:
                    self._result = asyncio.run(check())
                    self._fresh = False
                    self.wanted = self._result.again
                finally:
                    listener.setblocking(True)  # which it shares with the one that it is a copy of
        except asyncio.CancelledError:
            self._result = Result()
        except Exception as error:  # none of them may keep a job from starting
            what = str(error) or (
                "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
            )
            self.wanted = False
            failed = NotChecked(master=start.master.node_id, why=quoted(what))
            self._result = Result(found=NetworkFound(failed=failed))
        finally:
            ready.set()
            self._waker.wake()


async def _check(me: Me, start: StartReply, listener: socket.socket) -> Result:
    if start.master.node_id != me.node_id:
        master = start.master.address, start.master.script_port
        return await take_part(me, master, listener, PATIENCE_S)
    lead = Master(me.group, me.round, start.nnodes)
    served: asyncio.Queue[Message] = asyncio.Queue()
    host = listener.getsockname()[0]
    own = (LOOPBACK[listener.family] if host in WILDCARDS.values() else host), me.port
    leading = asyncio.create_task(lead.lead())
    tasks = [asyncio.create_task(accept(listener, served.put_nowait, lead.on_hello)), leading]
    try:
        result = await converse(me, own, served, PATIENCE_S)
        await leading  # it may not have told all the others yet
        return result
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
