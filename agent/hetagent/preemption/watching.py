"""Watches in threads of its own whether this machine is taken away."""

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from hetagent.context import AgentContext
from hetagent.node.console import WarnOnce
from hetagent.node.self_pipe import SelfPipe
from hetagent.preemption.clouds import CloudMetadata
from hetagent.preemption.local import PreemptionCommand, read_notice_file
from hetagent.roundhook import PreemptionNotice

LOOK_S = 2.0
"""Pause between two looks (seconds)."""

LEAD_S = 120.0
"""How long before its machine goes a node leaves at most (seconds), unless its grace is longer."""


NoticeSource = Callable[[], PreemptionNotice | None]
"""Looks for a notice, in a thread of its own; None: there is none, or no answer."""


class PreemptionWatch:
    """Has this node leave in time when its machine is taken away."""

    def __init__(
        self,
        sources: Sequence[NoticeSource],
        log: Callable[[str], None],
        grace_s: float,
        *,
        command: PreemptionCommand | None = None,  # that of `--leave-when`, if one of `sources` is its
        look_s: float = LOOK_S,
    ) -> None:
        self._sources = sources
        self._command = command
        self._log_once = WarnOnce(log)
        self._lead_s = max(LEAD_S, grace_s)
        self._look_s = look_s
        self._over = threading.Event()
        self._notice: PreemptionNotice | None = None
        self._waker = SelfPipe()

    def start(self) -> None:
        """Watch from now on, each in a thread of its own, since each may take its time."""
        for source in self._sources:
            threading.Thread(
                target=self._watch_source, args=[source], name="hetagent-preemption", daemon=True
            ).start()

    def fileno(self) -> int:
        """Readable when there is a notice to read."""
        return self._waker.fileno()

    def read_notice(self) -> PreemptionNotice | None:
        """That this machine is taken away; None: nobody has said so."""
        self._waker.clear()
        return self._notice

    def close(self) -> None:
        """Watch no more."""
        self._over.set()
        if self._command is not None:
            self._command.close()
        self._waker.close()

    def _watch_source(self, source: NoticeSource) -> None:
        while not self._over.is_set():
            try:
                self._on_notice(source())
            except Exception as error:  # it goes on, whatever is wrong with this answer
                text = f"cannot look for a notice of preemption: {type(error).__name__}: {error}"
                self._log_warning(f"{text}; trying again")
            self._over.wait(self._look_s)

    def _on_notice(self, notice: PreemptionNotice | None) -> None:
        if notice is None or self._notice is not None:
            return
        left_s = 0.0 if notice.deadline is None else notice.deadline - time.monotonic()
        if left_s > self._lead_s:
            self._log_warning(f"{notice.why}: leaving {self._lead_s:.0f} s before")
        else:
            self._notice = notice
            self._waker.wake()

    def _log_warning(self, text: str) -> None:
        if not self._over.is_set():
            self._log_once(text)


def make_preemption_watch(context: AgentContext) -> PreemptionWatch | None:
    """What looks whether this machine is taken away; None: nobody has asked for that."""
    options, log = context.options, context.tell
    sources: list[NoticeSource] = [CloudMetadata(log).find_notice] if options.watch else []
    command, when = None, options.leave_when or ""
    if len(when.split()) > 1 or shutil.which(when) is not None:
        command = PreemptionCommand(when, context.identity.incarnation, log)
        sources.append(command.find_notice)
    elif when:
        sources.append(partial(read_notice_file, Path(when)))
    return PreemptionWatch(sources, log, options.grace_s, command=command) if sources else None
