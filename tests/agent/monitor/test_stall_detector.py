"""What follows from looks at workers: who stands still, and what the server has to know at once."""

from dataclasses import replace
from typing import Any

import pytest

from hetagent.monitor.flight_recorder import NAME_LENGTH, OP_LENGTH
from hetagent.monitor.stall_detector import (
    MIN_CPU_WINDOW_S,
    SAMPLE_VALIDITY_S,
    ProcessState,
    ProgressReport,
    WorkerTrack,
    node_progress,
)
from hetrdzv.protocol import codec
from hetrdzv.protocol.bounds import MAX_BODY_BYTES, MAX_PROCESS_GROUPS
from hetrdzv.protocol.progress import PollRequest, ProcessGroupProgress
from hetrdzv.protocol.settings import MAX_SLOTS

GROUP = ProcessGroupProgress(name="0", size=2, enqueued=0, started=0, completed=0, op="all_reduce [[10]]")


AWAY = "nccl no longer answers"


class Watched:
    """A worker that is looked at every second. Its methods are the words of `CASES`."""

    def __init__(self) -> None:
        self.track = WorkerTrack(0.0, rank=4)
        self.now = 0.0
        self.told: list[str] = []
        self._done = 0
        self._news = self.track.take_urgent_changes(0.0, None)
        self._hang_timeout_s: float | None = None

    def timeout(self, seconds: int) -> None:
        self._hang_timeout_s = seconds

    def idles(self, seconds: int) -> None:
        """It has asked for nothing yet."""
        for _ in range(seconds):
            self.now += 1.0
            self.track.on_collectives({}, [], self.now, waits=False)
            self._judge()

    def works(self, seconds: int) -> None:
        for _ in range(seconds):
            self._done += 1
            self._look()

    def stands(self, seconds: int) -> None:
        for _ in range(seconds):
            self._look()

    def waits(self, seconds: int) -> None:
        """It has asked for a collective that is not done."""
        for _ in range(seconds):
            self._look(asked=1, waits=True)

    def computes(self, seconds: int) -> None:
        """The same, but its main thread goes on."""
        for _ in range(seconds):
            self._look(asked=1)

    def quiet(self, seconds: int) -> None:
        """Its server says nothing."""
        for _ in range(seconds):
            self.now += 1.0
            self.track.looked_at = self.now
            self._judge()

    def becomes(self, state: str) -> None:
        self.track.on_process_state(ProcessState(state), self.now)

    def says(self, step: int) -> None:
        self.track.on_report(ProgressReport(step), self.now)

    def pauses(self, until: int) -> None:
        self.track.on_report(ProgressReport(until=until), self.now)

    def unseen(self) -> None:
        self.track.unseen = AWAY

    def _look(self, seconds: float = 1.0, asked: int = 0, *, waits: bool = False) -> None:
        self.now += seconds
        group = replace(GROUP, enqueued=self._done + asked, completed=self._done)
        counts = {"0": (group.enqueued, 0, group.completed)}
        self.track.on_collectives(counts, [group], self.now, waits=waits)
        self._judge()

    def _judge(self) -> None:
        news = self.track.take_urgent_changes(self.now, self._hang_timeout_s)
        if news != self._news:
            self._news = news
            worker = self.track.to_worker_progress(self.now)
            self.told.append(f"{self.now:g} {worker.state}" + " still" * worker.still)


CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "stands, and moves again": ("works 10, stands 5, works 1", "12 runs still, 16 runs", {"idle_s": 0}),
    # a thread of it saves a checkpoint with the others, for instance
    "computes beside a collective": (
        "timeout 3, works 3, computes 10, waits 2",
        "15 runs still",
        {"idle_s": 2},
    ),
    "long steps: twice the longest": (
        "works 1, stands 4, works 1, stands 4, works 1, stands 10",
        "3 runs still, 6 runs, 21 runs still",
        {},
    ),
    "by half of the hang timeout, and after all of it": (
        "timeout 6, works 1, stands 9, works 1, stands 9",
        "3 runs still, 7 runs still, 11 runs, 14 runs still, 17 runs still",
        {},
    ),
    "the time before the first collective is no measure": (
        "idles 20, works 3, stands 2",
        "25 runs still",
        {},
    ),
    "more time before the first collective": ("idles 31", "30 runs still", {}),
    "nothing is seen": ("timeout 5, quiet 100", "", {"state": "unknown", "idle_s": 100, "waiting": None}),
    "groups that are not torch's": ("idles 5, unseen", "", {"state": "unknown", "unseen": AWAY}),
    # its checkpoint thread waits in a gloo side group while all train over NCCL, for instance
    "side groups of one that is unseen": (
        "timeout 6, waits 5, unseen, quiet 20",
        "3 runs still, 6 unknown",
        {"unseen": AWAY, "collectives": (), "waiting": None},
    ),
    "the process of one that is unseen": (
        "works 3, unseen, becomes stopped, quiet 1, stands 1",
        "4 stopped, 5 stopped still",
        {"unseen": ""},
    ),
    "an announced pause": ("works 3, pauses 603, stands 100", "", {"idle_s": 100, "long_s": 500}),
    "the end of a pause is a change": (
        "works 3, pauses 603, stands 100, pauses 0, stands 2",
        "105 runs still",
        {},
    ),
    "a pause lasts longer than announced": ("works 3, pauses 13, stands 20", "13 runs still", {}),
    "steps": (
        "says 1, quiet 1, says 2, quiet 1, says 3, quiet 2",
        "4 unknown still",
        {"step": 3, "idle_s": 2},
    ),
    "a state at once, but not a moment in the kernel": (
        "works 3, becomes blocked, works 1, becomes stopped, stands 1, becomes runs, works 1",
        "5 stopped, 6 runs",
        {},
    ),
    "hangs in the kernel": ("works 3, becomes blocked, quiet 2", "5 blocked still", {}),
    # it may have gone on until then: looks are a second apart
    "its end, if the round goes on": (
        "works 3, quiet 27, becomes ended, quiet 2",
        "5 runs still, 32 ended still",
        {"idle_s": 2},
    ),
    "the share of looks at which it waited": ("works 1, waits 1, works 1, waits 1", "", {"waiting": 0.5}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_told_at_once(case: str) -> None:
    looks, told, at_last = CASES[case]
    watched = Watched()
    for look in looks.split(", "):
        word, *values = look.split(" ")
        getattr(watched, word)(*(int(value) if value.isdigit() else value for value in values))
    assert ", ".join(watched.told) == told
    worker = watched.track.to_worker_progress(watched.now)
    assert {name: getattr(worker, name) for name in at_last} == at_last


@pytest.mark.parametrize(
    ("looks", "shares"),
    [
        (  # since it last moved
            [(10, 100.0, 9.5), (11, 100.5, 9.5), (14, 101.0, 9.5), (15, 101.0, 14.5), (16.5, 101.0, 14.5)],
            [None, 0.5, 0.25, None, 0.0],
        ),
        (
            [(1, 5.0, 0), (1 + MIN_CPU_WINDOW_S / 2, 5.0, 0), (3, None, 0), (9, 5.0, 0)],
            [None] * 4,
        ),  # of a moment
        ([(1, 5.0, 0), (2, 9.0, 0), (3, 4.0, 0)], [None, 1.0, 0.0]),  # of several threads
    ],
)
def test_the_share_of_a_core(
    looks: list[tuple[float, float | None, float]], shares: list[float | None]
) -> None:
    track, found = WorkerTrack(0.0), []
    for at, cpu_s, moved_at in looks:
        track.changed_at = moved_at
        track.on_cpu_time(cpu_s, at)
        found.append(track.cpu)
    assert found == shares


def test_a_sample_holds_until_a_few_seconds_after_the_last_look_at_the_workers() -> None:
    track = WorkerTrack(0.0)
    track.on_collectives({"0": (1, 0, 1)}, [GROUP], 4.0, waits=False)
    told = node_progress(3, [track], 9.0, 9.5)  # its server is asked more rarely
    assert (told.age_s, told.known_s) == (5.5, 5.0 + SAMPLE_VALIDITY_S)
    assert node_progress(3, [track], 9.0, 3600.0).known_s == told.known_s, "which is counted from the look"


def test_training_is_from_the_first_step_that_was_said_to_the_last() -> None:
    track, found = WorkerTrack(0.0), []
    for at, step, last_at in ((5.0, 200, 3.75), (6.0, 200, 5.5), (7.0, 201, 99.0)):  # 200 twice is no step
        track.on_report(ProgressReport(step, first_at=3.25, last_at=last_at), at)
        found.append((track.first_at, track.last_at))
    assert found == [(3.25, 3.75), (3.25, 3.75), (3.25, 7.0)]


def test_what_is_told_of_the_largest_node_fits_into_a_request_first_the_groups_in_which_it_waits() -> None:
    longest = replace(GROUP, name="n" * NAME_LENGTH, enqueued=2**53, completed=2**53, op="o" * OP_LENGTH)
    groups = [longest] * 39 + [replace(longest, completed=0)]
    for workers in (1, 8, 200, MAX_SLOTS):
        tracks = [WorkerTrack(0.0, rank) for rank in range(workers)]
        for track in tracks:
            track.on_collectives({"0": (1, 0, 1)}, groups, 1.0, waits=False)
        told = node_progress(3, tracks, 0.0, 1.0)
        assert {worker.collectives[0].completed for worker in told.workers} == {0}
        assert workers > 1 or len(told.workers[0].collectives) == MAX_PROCESS_GROUPS
        body = PollRequest(incarnation="i" * 128, progress=told)
        assert len(codec.to_json(body, given=True)) < MAX_BODY_BYTES
