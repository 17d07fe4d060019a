"""Processes that outlive their round: those that do not die, and those that may keep running for now."""

from collections.abc import Callable, Collection
from functools import partial

from hetagent.node.processes import proctree as processes


class OrphanReaper:
    """Processes of one agent that outlive their rounds; `persistent_sessions` are for later rounds."""

    def __init__(
        self,
        incarnation: str,
        log: Callable[[str], None],
        persistent_sessions: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._incarnation = incarnation
        self._persistent_sessions = persistent_sessions
        self._log = log
        self._stuck: set[processes.Process] = set()
        self._spared = False

    def describe_stuck(self) -> str:
        """Which of them are still alive, and why; empty if none is."""
        stuck = processes.find_survivors(self._stuck)
        return processes.describe_stuck(stuck) if stuck else ""

    def log_spared(self) -> None:
        """The job has succeeded: say what is left running."""
        if self._spared and (pids := processes.find_by_incarnation(self._incarnation)):
            shown = ", ".join(map(str, pids))
            self._log(f"processes that the workers detached (setsid) are left running: {shown}")

    def kill_spared(self) -> None:
        """That round was not the job's last, or the job has not succeeded."""
        if self._spared:
            self._spared = False
            self.kill_all()

    def kill_all(self, sessions: Collection[int] = (), *, spare_detached: bool = False) -> None:
        """Kill everything that this agent's workers are or have started, in these sessions or marked as theirs.

        With `spare_detached` only in the sessions: the workers have succeeded here, and what they have detached may
        keep running until the job's outcome is known.
        """
        if spare_detached:
            self._spared = True
            stuck = processes.kill_all(lambda: processes.find_session_members(sessions))
        else:
            find = partial(processes.find_by_incarnation, self._incarnation)
            stuck = processes.kill_tree(find, sessions, find_spared=self._persistent_sessions)
        if stuck:
            alive = processes.list_processes()
            self._stuck |= {alive[pid] for pid in stuck if pid in alive}
            self._log(f"processes cannot be killed: {processes.describe_stuck(stuck)}")
