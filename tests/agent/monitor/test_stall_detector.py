"""What follows from looks at workers: who stands still, and what the server has to know at once."""

from dataclasses import replace

import pytest

from hetagent.monitor.flight_recorder import NAME_LENGTH, OP_LENGTH
from hetagent.monitor.stall_detector import CPU_S, HOLDS_S, ProgressReport, State, Track, node_progress
from hetagent.roundhook import Motion
from hetrdzv.protocol import codec
from hetrdzv.protocol.bounds import MAX_BODY_BYTES, MAX_PROCESS_GROUPS
from hetrdzv.protocol.progress import Collectives, NodeProgress, PollRequest, Worker
from hetrdzv.protocol.settings import MAX_SLOTS

GROUP = Collectives(name="0", size=2, enqueued=0, started=0, completed=0, op="all_reduce [[10]]")


class Watched:
    """A round of one worker that is looked at every second."""

    def __init__(self, hang_timeout_s: float | None = None) -> None:
        self.track = Track(0.0)
        self.watched_at = self.now = 0.0
        self.hang_timeout_s = hang_timeout_s
        self.told: list[tuple[float, str, bool]] = []

    def on_collectives(self, enqueued: int, completed: int | None = None, seconds: float = 1.0) -> None:
        """A second later, this is what its server says."""
        self.now += seconds
        done = enqueued if completed is None else completed
        group = replace(GROUP, enqueued=enqueued, completed=done)
        counts = {"0": (enqueued, 0, done)} if enqueued else {}
        self.track.on_collectives(counts, [group] if enqueued else [], self.now, waits=enqueued > done)
        self.judge()

    def judge(self) -> None:
        if self.track.judge(self.now, self.hang_timeout_s):
            self.track.mark_sent()
            worker = self.worker()
            self.told.append((self.now, worker.state, worker.still))

    def worker(self) -> Worker:
        return self.fields(self.now).workers[0]

    def fields(self, at: float) -> NodeProgress:
        return node_progress(3, {4: self.track}, self.watched_at, at)

    def works(self, seconds: int, at: int = 0) -> int:
        for _ in range(seconds):
            at += 1
            self.on_collectives(at)
        return at


def test_one_that_stands_is_told_after_two_seconds_and_again_when_it_moves() -> None:
    watched = Watched()
    at = watched.works(10)
    assert watched.told == []
    for _ in range(5):
        watched.on_collectives(at)
    assert watched.told == [(12.0, "runs", True)]
    watched.on_collectives(at + 1)
    assert watched.told[1:] == [(16.0, "runs", False)]


def test_one_that_has_gone_on_and_stands_again_is_told_anew() -> None:
    """Else the server would add up both, and end a round in which nobody has waited for so long."""
    watched = Watched()
    at = watched.works(10)
    for _ in range(5):
        watched.on_collectives(at)
    watched.now += 20.0  # nobody looks, and the last operation is 5 s old
    watched.track.on_collectives(
        {"0": (at + 1, 0, at)}, [GROUP], watched.now, newest_at=watched.now - 5.0, waits=False
    )
    watched.hang_timeout_s = 6.0
    watched.judge()
    assert watched.told == [(12.0, "runs", True), (35.0, "runs", True)]
    assert watched.track.idle_s == 5.0


def test_one_that_computes_beside_a_collective_that_is_not_done_moves() -> None:
    """A thread of it saves a checkpoint with the others, for instance: its main thread does not wait."""
    watched = Watched(hang_timeout_s=3.0)
    at = watched.works(3)
    for _ in range(10):
        watched.now += 1.0
        group = replace(GROUP, enqueued=at + 1, completed=at)
        watched.track.on_collectives({"0": (at + 1, 0, at)}, [group], watched.now, waits=False)
        watched.judge()
    assert (watched.told, watched.track.idle_s) == ([], 0.0)
    for _ in range(2):
        watched.on_collectives(at + 1, completed=at)
    assert watched.told == [(15.0, "runs", True)], "now its main thread waits"


@pytest.mark.parametrize(
    ("looks", "shares"),
    [
        (
            [
                (10.0, 100.0, 9.5),
                (11.0, 100.5, 9.5),
                (14.0, 101.0, 9.5),
                (15.0, 101.0, 14.5),
                (16.5, 101.0, 14.5),
            ],
            [None, 0.5, 0.25, None, 0.0],
        ),
        ([(1.0, 5.0, 0.0), (1.0 + CPU_S / 2, 5.0, 0.0), (3.0, None, 0.0), (9.0, 5.0, 0.0)], [None] * 4),
        ([(1.0, 5.0, 0.0), (2.0, 9.0, 0.0), (3.0, 4.0, 0.0)], [None, 1.0, 0.0]),
    ],
    ids=[
        "since it last moved",
        "of a moment, or of one that is gone",
        "of several threads, and never below zero",
    ],
)
def test_the_share_of_a_core(
    looks: list[tuple[float, float | None, float]], shares: list[float | None]
) -> None:
    track, found = Track(0.0), []
    for at, cpu_s, moved_at in looks:
        track.changed_at = moved_at
        track.uses_cpu(cpu_s, at)
        found.append(track.cpu)
    assert found == shares


def test_one_with_long_steps_stands_after_twice_the_longest() -> None:
    watched = Watched()
    for step in range(1, 4):
        for _ in range(5):
            watched.on_collectives(step)
    before = len(watched.told)
    started = watched.now - 4
    while len(watched.told) == before:
        watched.on_collectives(3)
    assert watched.told[-1] == (started + 10.0, "runs", True)


def test_with_a_hang_timeout_it_is_told_by_half_of_it_and_again_after_all_of_it() -> None:
    watched = Watched(hang_timeout_s=6.0)
    for step in range(1, 4):
        for _ in range(10):
            watched.on_collectives(step)
    stands = [at for at, _, still in watched.told if still]
    assert stands == [3.0, 7.0, 14.0, 17.0, 24.0, 27.0]


def test_the_time_before_the_first_collective_is_no_measure_for_what_follows() -> None:
    watched = Watched()
    watched.on_collectives(0, seconds=20.0)
    at = watched.works(3)
    watched.on_collectives(at)
    watched.on_collectives(at)
    assert watched.told == [(25.0, "runs", True)]


def test_before_its_first_collective_a_worker_has_more_time() -> None:
    watched = Watched()
    for _ in range(29):
        watched.on_collectives(0)
    assert watched.told == []
    watched.on_collectives(0)
    assert watched.told == [(30.0, "runs", True)]


def test_nothing_is_said_of_a_worker_in_which_nothing_can_be_seen() -> None:
    track = Track(0.0)
    track.on_nothing_new(500.0)
    assert not track.judge(500.0, 5.0)
    (worker,) = node_progress(3, {0: track}, 0.0, 500.0).workers
    assert (worker.state, worker.idle_s, worker.waiting, worker.step) == ("unknown", 500.0, None, None)


def test_torch_without_groups_has_asked_for_nothing_unless_its_collectives_cannot_be_known() -> None:
    for unseen, state in [("", "runs"), ("its collectives are not those of torch.distributed", "unknown")]:
        track = Track(0.0)
        track.on_collectives({}, [], 5.0, waits=False)
        track.unseen = unseen
        (worker,) = node_progress(3, {0: track}, 0.0, 5.0).workers
        assert (worker.state, worker.unseen) == (state, unseen)


def test_of_a_worker_that_is_unseen_its_side_groups_say_nothing() -> None:
    """Its checkpoint thread waits in a gloo side group while all train over NCCL, for instance."""
    watched = Watched(hang_timeout_s=6.0)
    at = watched.works(5)
    watched.track.unseen = "nccl no longer answers"
    watched.judge()
    for _ in range(20):
        watched.track.on_nothing_new(watched.now)
        watched.now += 1.0
        watched.judge()
    assert watched.told == [(5.0, "unknown", False)], "that it is unseen is told at once, and nothing else"
    worker = watched.worker()
    assert (worker.unseen, worker.collectives, worker.waiting) == ("nccl no longer answers", (), None)
    watched.on_collectives(at)
    assert [state for _, state, _ in watched.told[1:]] == ["runs"]


def test_what_the_process_does_is_known_of_an_unseen_worker_too() -> None:
    watched = Watched()
    watched.works(3)
    watched.track.unseen = "gloo no longer answers"
    watched.track.on_process_state(State.STOPPED, 3.5)
    watched.now += 1.0
    watched.judge()
    assert watched.told == [(4.0, "stopped", False)]


def test_a_sample_holds_until_a_few_seconds_after_the_last_look_at_the_workers() -> None:
    watched = Watched()
    at = watched.works(3)
    watched.on_collectives(at, seconds=1.0)
    watched.watched_at = 9.0  # its server is asked more rarely
    fields = watched.fields(9.5)
    assert (fields.age_s, fields.known_s) == (5.5, 5.0 + HOLDS_S)
    assert watched.fields(3600.0).known_s == fields.known_s, "which is counted from the look"


def test_an_announced_pause_is_none_and_does_not_count() -> None:
    watched = Watched()
    at = watched.works(3)
    watched.track.on_report(ProgressReport(until=603.0), 3.0)
    for _ in range(100):
        watched.on_collectives(at)
    assert watched.told == []
    worker = watched.worker()
    assert (worker.idle_s, worker.long_s) == (100.0, 500.0)
    watched.track.on_report(ProgressReport(), watched.now)  # the end of the pause is a change
    watched.on_collectives(at)
    assert watched.told == []
    watched.on_collectives(at)
    assert watched.told == [(105.0, "runs", True)]
    watched = Watched()
    at = watched.works(3)
    watched.track.on_report(ProgressReport(until=13.0), 3.0)
    for _ in range(20):
        watched.on_collectives(at)
    assert watched.told == [(13.0, "runs", True)], "it lasts longer than announced"


def test_steps_of_the_script_are_progress_too() -> None:
    track = Track(0.0)
    for second in range(1, 6):
        track.on_report(ProgressReport(step=second), float(second))
        track.on_nothing_new(float(second))
    assert not track.judge(5.0, None)
    track.on_nothing_new(7.0)
    assert track.judge(7.0, None)
    worker = track.fields(0, 7.0)
    assert (worker.step, worker.idle_s, worker.still) == (5, 2.0, True)


def test_a_state_is_told_at_once_but_a_moment_in_the_kernel_is_none() -> None:
    watched = Watched()
    at = watched.works(3)
    watched.track.on_process_state(State.BLOCKED, 3.5)
    watched.on_collectives(at + 1)
    assert watched.told == []
    watched.track.on_process_state(State.STOPPED, 4.5)
    watched.judge()
    assert watched.told == [(4.0, "stopped", False)]
    watched.track.on_process_state(State.RUNS, 5.0)
    watched.on_collectives(at + 2)
    assert watched.told[1:] == [(5.0, "runs", False)]


def test_a_worker_that_hangs_in_the_kernel_is_blocked_once_it_does_not_move() -> None:
    watched = Watched()
    watched.works(3)
    watched.track.on_process_state(State.BLOCKED, 3.0)
    for now in (4.0, 5.0):
        watched.now = now
        watched.track.on_nothing_new(now)
        watched.judge()
    assert watched.told == [(5.0, "blocked", True)]


def test_the_end_of_a_worker_is_told_only_if_the_round_goes_on() -> None:
    watched = Watched()
    watched.works(3)
    watched.track.on_process_state(State.ENDED, 3.0)
    watched.now = 4.9
    watched.judge()
    assert watched.told == []
    watched.now = 5.0
    watched.judge()
    assert [state for _, state, _ in watched.told] == ["ended"]


def test_nobody_waits_for_a_worker_for_longer_than_since_it_ended() -> None:
    """It may have gone on until then, unseen: looks are a second apart."""
    watched = Watched()
    watched.works(3)
    watched.track.on_process_state(State.ENDED, 30.0)
    watched.track.on_nothing_new(31.0)
    assert watched.track.idle_s == 1.0
    assert not watched.track.is_still(31.0, None)
    watched.track.on_nothing_new(32.0)
    assert watched.track.is_still(32.0, None)


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """The agent was stopped, or the machine was asleep, and the workers perhaps with it."""
    watched = Watched()
    at = watched.works(3)
    watched.track.slept(3600.0)
    watched.on_collectives(at, seconds=3600.5)
    assert watched.told == []
    assert watched.track.idle_s == 0.5


def test_a_change_is_dated_by_the_last_operation() -> None:
    track = Track(0.0)
    track.on_collectives({"0": (1, 0, 1)}, [GROUP], 10.0, waits=False)
    track.on_collectives({"0": (2, 0, 1)}, [GROUP], 11.0, newest_at=10.2, waits=False)
    assert round(track.idle_s, 3) == 0.8
    track.on_collectives({"0": (3, 0, 1)}, [GROUP], 12.0, newest_at=10.2, waits=False)  # that was no new one
    assert track.idle_s == 0.0
    track.on_collectives(
        {"0": (4, 0, 1)}, [GROUP], 13.0, newest_at=99.0, waits=False
    )  # the wall clock was set
    assert track.idle_s == 0.0


def test_training_between_two_looks_begins_with_the_earlier_one() -> None:
    track = Track(0.0)
    track.on_nothing_new(9.0)
    group = replace(GROUP, enqueued=400, completed=400)
    track.on_collectives({"0": (400, 0, 400)}, [group], 10.0, newest_at=9.9, waits=False)
    assert track.motion == Motion(9.0, 9.9)


def test_training_is_from_the_first_step_that_was_said_to_the_last() -> None:
    track = Track(0.0)
    track.on_report(ProgressReport(step=200, first_at=3.25, last_at=3.75), 5.0)
    assert track.motion == Motion(3.25, 3.75)
    track.on_report(ProgressReport(step=200, first_at=3.25, last_at=5.5), 6.0)  # said again, which is none
    assert track.motion == Motion(3.25, 3.75)
    track.on_report(ProgressReport(step=201, first_at=3.25, last_at=99.0), 7.0)
    assert track.motion == Motion(3.25, 7.0)


def test_the_share_of_looks_at_which_it_waited() -> None:
    watched = Watched()
    for enqueued, completed in [(1, 1), (2, 1), (3, 3), (4, 3)]:
        watched.on_collectives(enqueued, completed)
    worker = watched.worker()
    assert worker.waiting == 0.5


def test_of_many_groups_those_are_told_in_which_it_waits() -> None:
    groups = [replace(GROUP, name=str(number), enqueued=1, completed=1) for number in range(40)]
    groups[-1] = replace(groups[-1], completed=0)
    track = Track(0.0)
    track.on_collectives({"0": (1, 0, 1)}, groups, 1.0, waits=False)
    told = track.fields(0, 1.0).collectives
    assert len(told) == MAX_PROCESS_GROUPS
    assert told[0].name == "39"


def test_what_is_told_of_the_largest_node_fits_into_a_request() -> None:
    longest = replace(GROUP, name="n" * NAME_LENGTH, enqueued=2**53, completed=2**53, op="o" * OP_LENGTH)
    groups = [longest] * 40
    for workers in (1, 8, 200, MAX_SLOTS):
        tracks = {rank: Track(0.0) for rank in range(workers)}
        for track in tracks.values():
            track.on_collectives({"0": (1, 0, 1)}, groups, 1.0, waits=False)
        body = PollRequest(incarnation="i" * 128, progress=node_progress(3, tracks, 0.0, 1.0))
        assert len(codec.write(body, given=True)) < MAX_BODY_BYTES
