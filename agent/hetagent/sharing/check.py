"""Finds out how fast this node's slots are, before it joins: from the cache, or by the benchmark."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from hetagent.health.fitness import READY, Check, Fitness
from hetagent.node.processes import finding as processes
from hetagent.sharing import cache, judged
from hetagent.sharing.subject import Subject

TIMEOUT_S = 60.0
"""How long the benchmark may take (seconds). It measures for two; the rest is the import of torch on a busy host."""

LOOK_S = 0.05
"""How often to look whether it is no longer wanted (seconds)."""

BUSY = 0.5
"""A machine with more processes for each of its CPUs that want to run is busy: what is measured then on CPUs is used,
since nothing better is known, but no later job should go by it."""

COMMAND = (sys.executable, "-m", "hetagent.sharing.benchmark")


def load_per_cpu() -> float:
    """How many processes of this machine have wanted to run in the last minute, for each of its CPUs."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


class NotMeasured(Exception):
    """The benchmark has failed; says why in a few words."""


class SpeedCheck(Check):
    """Measures once; asked again, it answers at once.

    Whatever goes wrong, the node takes part in the job, without speeds.

    Args:
        subject: what to measure.
        incarnation: marks its processes, so that none outlives the agent.
        on_measured: gets the speeds, before there is a verdict; called from the thread that asks.
        tell: shows one line to the person at the terminal.
        place: the cache's folder; None: there is none.
        again: measure, whatever is in the cache.
        command: prints what benchmark.py prints.
        timeout_s: how long it may take (seconds).
        load: how busy the machine is; see `load_per_cpu`.
    """

    wants_quiet = True

    def __init__(
        self,
        subject: Subject,
        incarnation: str,
        on_measured: Callable[[Sequence[float]], None],
        tell: Callable[[str], None],
        *,
        place: Path | None,
        again: bool = False,
        command: Sequence[str] = COMMAND,
        timeout_s: float = TIMEOUT_S,
        load: Callable[[], float] = load_per_cpu,
    ) -> None:
        self._subject = subject
        self._incarnation = incarnation
        self._on_measured = on_measured
        self._tell = tell
        self._place = place
        self._again = again
        self._command = command
        self._timeout_s = timeout_s
        self._load = load
        self.done = False
        self.facts = subject.facts

    def ask(self, workers: Collection[int], cancelled: threading.Event) -> Fitness:
        """Find out, the first time; this node is ready in any case."""
        if self.done:
            return READY
        slots = len(self._subject.kinds)
        kept = None
        if self._place is not None and not self._again:
            kept = cache.read(self._place, self._subject.key, slots)
        is_busy = kept is None and self._subject.visible is None and self._load() > BUSY
        try:
            speeds = kept if kept is not None else self._measure(cancelled)
        except NotMeasured as error:
            self.done = True
            return Fitness(
                warnings=(f"the speed of this node's slots is not known, so none is reported: {error}",)
            )
        if speeds is None:
            return READY
        self.done = True
        if self._subject.visible is None:
            speeds = judged.of_cpus(speeds)
        warnings = judged.slow(speeds, self._subject.kinds)
        how = "measured earlier; to measure again: --measure again"
        if kept is None:
            how = "measured now, on a busy machine: not kept for later jobs" if is_busy else "measured now"
            if (
                not warnings and not is_busy
            ):  # who is slow may only have been disturbed: it is measured again next time
                self._keep(speeds)
        shown = ", ".join(f"{speed:g}" for speed in speeds)
        self._tell(f"speed of {self._subject.text}: {shown} TFLOP/s ({how})")
        self._on_measured(speeds)
        return Fitness(warnings=tuple(warnings))

    def _measure(self, cancelled: threading.Event) -> list[float] | None:
        """Run the benchmark; None if that is no longer wanted.

        Raises:
            NotMeasured: it has failed.
        """
        deadline = time.monotonic() + self._timeout_s
        try:
            process = subprocess.Popen(
                [*self._command, json.dumps(self._subject.asked)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, processes.CHECK_FOR: self._incarnation},
                start_new_session=True,
            )
        except OSError as error:
            raise NotMeasured(f"the benchmark cannot be started: {error}") from None
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    said, complained = process.communicate(timeout=LOOK_S)
                    break
                if cancelled.is_set():
                    return None
                if time.monotonic() >= deadline:
                    raise NotMeasured(f"the benchmark did not finish within {self._timeout_s:g} s")
        finally:
            if process.poll() is None:
                self._kill(process)
        results = _parsed(said, complained, process.returncode)
        speeds = judged.speeds(results)
        if isinstance(speeds, str):
            raise NotMeasured(speeds)
        if len(speeds) != len(self._subject.kinds):
            raise NotMeasured(f"the benchmark answered for {len(speeds)} of {len(self._subject.kinds)} slots")
        return speeds

    def _kill(self, process: "subprocess.Popen[bytes]") -> None:
        processes.kill_tree(lambda: processes.marked(self._incarnation, processes.CHECK_FOR), {process.pid})
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.poll()  # one that hangs in a driver is not waited for

    def _keep(self, speeds: Sequence[float]) -> None:
        if self._place is None:
            return
        try:
            cache.write(self._place, self._subject.key, speeds)
        except OSError as error:
            self._tell(f"these speeds are not kept for later jobs: {error.strerror or error} ({self._place})")


def _parsed(said: bytes, complained: bytes, status: int) -> Sequence[Mapping[str, object]]:
    """What the benchmark printed last.

    Raises:
        NotMeasured: it failed, or printed something else.
    """
    lines = complained.decode(errors="replace").strip().splitlines()
    if status != 0:
        raise NotMeasured(f"the benchmark failed: {lines[-1][:500] if lines else f'exit status {status}'}")
    try:
        results = json.loads(said.splitlines()[-1])
        if all(isinstance(result, dict) for result in results):
            return list(results)
    except (ValueError, IndexError, TypeError):
        pass
    raise NotMeasured(f"the benchmark printed {said[-200:]!r}, which makes no sense")
