"""Who is blamed for a hang (core/hangs.py)."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetrdzv.core import hangs
from hetrdzv.core.hangs import find_hang
from hetrdzv.protocol.progress import ProcessGroupProgress, WorkerProgress
from hetrdzv.protocol.reasons.hangs import Hang


def at(
    enqueued: int,
    completed: int | None = None,
    name: str = "0",
    size: int = 4,
    started: int = 0,
    op: str = "",
):
    """A worker's collectives in a process group; by default the last one is not complete."""
    return ProcessGroupProgress(
        name=name,
        size=size,
        enqueued=enqueued,
        started=started,
        completed=enqueued - 1 if completed is None else completed,
        op=op,
    )


def worker(rank: int, *collectives: ProcessGroupProgress, idle: float = 40.0, **more):
    return WorkerProgress(rank=rank, idle_s=idle, collectives=collectives, **more)


def node_of(rank: int) -> str:
    return f"gpu{rank // 2 + 1}"


def done(enqueued: int, **more):
    return at(enqueued, enqueued, **more)


def message(verdict: Hang | None) -> str:
    assert verdict is not None
    return verdict.message()


SLEEPER = [
    worker(0, at(17_204)),
    worker(1, at(17_204)),
    worker(2, at(17_204)),
    worker(3, done(17_203), idle=45),
]


def world(size: int) -> list[WorkerProgress]:
    return [worker(rank, at(5, size=size)) for rank in range(size)]


UNKNOWN = worker(2, state="unknown")
NCCL = "0/nccl"

STALLS = {
    # of others that wait as well none is to blame for what one alone says
    "nothing_completes [] 40: rank 0 waits for collective 1,000,000, which does not complete although "
    "nobody is behind": [worker(0, at(1_000_000)), *(worker(rank, at(17)) for rank in (1, 2, 3))],
    # who is known to be behind is, whatever is unknown of others
    "behind [3] 40: ranks 0 and 1 wait for rank 3 (gpu2), which is at collective 7 of 8": [
        worker(0, at(8)),
        worker(1, at(8)),
        UNKNOWN,
        worker(3, done(7)),
    ],
    # no side of a mismatch if one is unknown that may be on either
    "mismatch [] 40: ranks 0, 1 and 3 wait for each other: as collective 9, ranks 0 and 1 asked for "
    "all_reduce [[10]], rank 3 asked for broadcast [[10]]": [
        *(worker(rank, at(9, op="all_reduce [[10]]")) for rank in (0, 1)),
        UNKNOWN,
        worker(3, at(9, op="broadcast [[10]]")),
    ],
    # the root of a broadcast over NCCL may be ahead
    "behind [2] 40: ranks 0 and 1 wait for rank 2 (gpu2), which is at collective 10 of 12": [
        worker(0, at(12, name=NCCL, size=3)),
        worker(1, at(11, name=NCCL, size=3)),
        worker(2, done(10, name=NCCL, size=3)),
        worker(3),
    ],
    # where culprits are in different places the first is told
    "behind [1, 2] 40: ranks 0 and 3 wait for rank 1 (gpu1) and rank 2 (gpu2), of which rank 1 is at "
    "collective 8 of 9": [
        worker(0, at(9), at(4, name="tp", size=2)),
        worker(1, done(8)),
        worker(2, done(9), done(3, name="tp", size=2)),
        worker(3, at(9)),
    ],
    # a dead-lock in the first collective of a group of which the size is not known
    "nothing_completes [] 40: ranks 0 to 3 wait for collective 1 of process group 1 and collective "
    "101, which do not complete although nobody is behind": [
        worker(0, done(100), at(1, name="1", size=0)),
        *(worker(rank, at(101)) for rank in (1, 2, 3)),
    ],
    # one has not come to the first collective of a group of which the size is not known
    "behind [1] 40: ranks 0, 2 and 3 wait for rank 1 (gpu1), which has not started a collective of "
    "process group 1 yet": [worker(rank, done(9), at(1, name="1", size=0)) for rank in (0, 2, 3)]
    + [worker(1, done(9))],
    # one is behind
    "behind [3] 40: ranks 0 to 2 wait for rank 3 (gpu2), which is at collective 17,203 of 17,204": SLEEPER,
    # only the one that does not move is to blame
    "behind [3] 40: ranks 0 and 1 wait for rank 3 (gpu2), which is at collective 8 of 9": [
        worker(0, at(9)),
        worker(1, at(9)),
        worker(2, done(8), idle=0.1),
        worker(3, done(8)),
    ],
    # no collective yet
    "behind [3] 40: ranks 0 to 2 wait for rank 3 (gpu2), which has not started a collective yet": [
        worker(0, at(1)),
        worker(1, at(1)),
        worker(2, at(1)),
        worker(3),
    ],
    # no collective of a small group yet, and nobody else is free
    "behind [1] 40: ranks 0, 2 and 3 wait for rank 1 (gpu1), which has not started a collective of "
    "process group 7 yet": [
        worker(0, at(1, name="7", size=2), done(4, name="8", size=2), done(4, name="9", size=2)),
        worker(1, done(4)),
        worker(2, at(5, name="8", size=2)),
        worker(3, at(5, name="9", size=2)),
    ],
    # no collective of a small group yet, and it could be anybody
    "nothing_completes [] 40: rank 0 waits for collective 1 of process group 7, which does not "
    "complete although nobody is behind": [
        worker(0, at(1, name="7", size=2), done(4)),
        *(worker(rank, done(4)) for rank in (1, 2, 3)),
    ],
    # over a chain of groups
    "behind [3] 40: ranks 0 to 2 wait for rank 3 (gpu2), which is at collective 2 of 3 in process group c": [
        worker(0, done(4, name="a", size=2), at(8, name="b", size=2)),
        worker(1, at(5, name="a", size=2)),
        worker(2, done(7, name="b", size=2), at(3, name="c", size=2)),
        worker(3, done(2, name="c", size=2)),
    ],
    # by what has begun
    "behind [3] 40: ranks 0 to 2 wait for rank 3 (gpu2), which has not begun collective 9": [
        *(worker(rank, at(9, started=9)) for rank in range(3)),
        worker(3, at(9, started=8)),
    ],
    # stopped
    "no_answer [3] 40: ranks 0 to 2 wait for rank 3 (gpu2), which is stopped by a signal, last seen "
    "at collective 17,203 of 17,204": [*SLEEPER[:3], worker(3, done(17_203), state="stopped")],
    # ended
    "behind [3] 12: ranks 0 to 2 wait for rank 3 (gpu2), which has ended after collective 17,203 of 17,204": [
        *SLEEPER[:3],
        worker(3, done(17_203), state="ended", idle=12),
    ],
    # deadlock of two groups
    "nothing_completes [] 40: ranks 0 and 1 wait for collective 5 of process group 1 and collective "
    "8 of process group 2, which do not complete although nobody is behind": [
        worker(0, at(5, name="1", size=2), done(7, name="2", size=2)),
        worker(1, done(4, name="1", size=2), at(8, name="2", size=2)),
    ],
    # unlike operations
    "mismatch [3] 40: ranks 0 to 2 wait for rank 3 (gpu2): as collective 9, ranks 0 to 2 asked for "
    "all_reduce [[10]], rank 3 asked for all_gather": [
        *(worker(rank, at(9, op="all_reduce [[10]]")) for rank in range(3)),
        worker(3, at(9, op="all_gather [[10]]")),
    ],
    # unlike sizes
    "mismatch [] 40: ranks 0 and 1 wait for each other: as collective 9, rank 0 asked for all_reduce "
    "[[10]], rank 1 asked for all_reduce [[11]]": [
        worker(0, at(9, size=2, op="all_reduce [[10]]")),
        worker(1, at(9, size=2, op="all_reduce [[11]]")),
    ],
    # behind, and unlike shapes of one size among those who wait
    "behind [3] 40: ranks 0 to 2 wait for rank 3 (gpu2), which is at collective 8 of 9": [
        worker(0, at(9, op="broadcast [[2,5]]")),
        worker(1, at(9, op="broadcast [[10]]")),
        worker(2, at(9, op="broadcast [[5,2]]")),
        worker(3, at(8, completed=8)),
    ],
    # nothing completes
    "nothing_completes [] 40: ranks 0 to 3 wait for collective 5, which does not complete although "
    "nobody is behind": world(4),
    # behind by steps
    "behind [3] 80: ranks 0 to 2 wait for rank 3 (gpu2), which is at step 119 of 120": [
        worker(rank, step=119 if rank == 3 else 120, idle=80) for rank in range(4)
    ],
    # all at the same step
    "nothing_completes [] 80: ranks 0 to 3 wait for step 120, which does not complete although "
    "nobody is behind": [worker(rank, step=120, idle=80) for rank in range(4)],
}


@pytest.mark.parametrize("verdict", STALLS)
def test_who_is_blamed(verdict: str) -> None:
    workers = STALLS[verdict]
    for order in (workers, workers[::-1]):
        found = find_hang(order, 2 if len(workers) == 2 else 4, node_of)
        assert found is not None
        assert f"{found.kind} {list(found.ranks)} {found.for_s:g}: {found.message()}" == verdict


NO_STALLS = {
    "all move": [worker(0, at(9), idle=0.2), worker(1, done(8), idle=0.1)],
    "the one behind moves": [*SLEEPER[:3], worker(3, done(17_203), idle=0.2)],
    "those who wait have moved just now": [worker(0, at(9), idle=0.5), worker(3, done(8))],
    "the one behind has announced a long pause": [*SLEEPER[:3], worker(3, done(17_203), long_s=100)],
    "nobody waits": [worker(rank, done(9 - rank)) for rank in range(4)],
    "nothing is known of the one behind": [*SLEEPER[:3], worker(3, done(17_203), state="unknown")],
    "one has no sample": SLEEPER[:3],
    "one that waits moves in another group": [worker(0, at(9, size=2), at(3, name="1", size=2), idle=0.1)],
    "none has collectives": [worker(rank) for rank in range(4)],
    "steps, but not of all": [worker(rank, step=rank or None, idle=80) for rank in range(4)],
    "steps, and not for long": [worker(rank, step=rank, idle=30) for rank in range(4)],
    "send and receive": [
        worker(rank, at(9, op=op), long_s=0)
        for rank, op in enumerate(("send [[1]]", "recv [[1]]", "send [[2]]"))
    ],
    "one completes it": [*(worker(rank, at(9)) for rank in range(3)), worker(3, done(9))],
    "others move that may be members of a group of which the size is not known": [
        worker(0, done(80), idle=0),
        worker(1, done(80), idle=0),
        worker(2, done(80), idle=0),
        worker(3, at(101), at(2, name="2", size=0), idle=5),
    ],
    "ended only now, perhaps after a collective that nobody has seen": [
        *(worker(rank, at(9)) for rank in range(3)),
        worker(3, done(8), state="ended", idle=0),
    ],
    "the one that all others wait for": [*SLEEPER[:3], worker(3, state="unknown")],
    "a member of a group of which the size is not known": [
        worker(0, at(9, name="1", size=0)),
        worker(1, at(9, name="1", size=0)),
        UNKNOWN,
        worker(3, done(9)),
    ],
    "a member that may be in the first collective of a group": [
        worker(0, at(1, name="7", size=2)),
        worker(1, done(4)),
        UNKNOWN,
        worker(3, done(4)),
    ],
    "a member of a collective that nobody completes": [
        worker(0, at(9)),
        worker(1, at(9)),
        UNKNOWN,
        worker(3, at(9)),
    ],
    "one whose step is not known": [worker(rank, step=5, idle=90) for rank in (0, 1, 3)] + [UNKNOWN],
    "all": [worker(rank, state="unknown") for rank in range(4)],
    "stages of a pipeline over NCCL, of which two wait to receive": [
        worker(rank, at(*both, name=NCCL, size=3), idle=60)
        for rank, both in enumerate([(37, 36), (74, 74), (36, 35)])
    ],
    "or one does": [
        worker(rank, at(*both, name=NCCL, size=3), idle=60)
        for rank, both in enumerate([(37, 37), (74, 74), (36, 35)])
    ],
}


@pytest.mark.parametrize("case", NO_STALLS)
def test_nobody_is_blamed(case: str) -> None:
    assert find_hang(NO_STALLS[case], 4, node_of) is None


@pytest.mark.parametrize(
    ("shares", "cpu"),
    [
        ((0.9,), ", and burns CPU"),
        ((0.01,), ", and sleeps"),
        ((None,), ""),
        ((0.0, 0.0), ", and sleep"),
        ((0.0, 1.0), ""),
    ],
)
def test_whether_those_behind_burn_cpu_or_sleep_is_said_where_it_is_known(shares, cpu: str) -> None:
    first = 4 - len(shares)
    late = [worker(first + number, done(8), cpu=share) for number, share in enumerate(shares)]
    verdict = find_hang([worker(rank, at(9), cpu=0.0) for rank in range(first)] + late, 4, node_of)
    assert message(verdict).endswith(f" at collective 8 of 9{cpu}")


# -- a job in lock-step ------------------------------------------------------------------------------------


Job = tuple[int, list[tuple[int, ...]], list[int]]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """World size, process groups, and the groups in the order in which a step uses them."""
    world_size = draw(st.integers(2, 8))
    members = st.sets(st.integers(0, world_size - 1), min_size=1).map(lambda ranks: tuple(sorted(ranks)))
    groups = [tuple(range(world_size)), *draw(st.lists(members, max_size=4))]
    order = draw(st.lists(st.integers(0, len(groups) - 1), min_size=1, max_size=6))
    return world_size, groups, [*order, 0]


def run(
    job: Job, moves: list[int], sleeper: int | None = None, sleeps_after: int = 0
) -> list[WorkerProgress]:
    """Move ranks through a job, as seen in the end.

    A rank asks for the next collective of the step that concerns it, and goes on once all members have asked.
    """
    world_size, groups, order = job
    enqueued = [[0] * len(groups) for _ in range(world_size)]
    completed = [[0] * len(groups) for _ in range(world_size)]
    plans = [itertools.cycle([one for one in order if rank in groups[one]]) for rank in range(world_size)]
    waits: list[int | None] = [None] * world_size
    total = [0] * world_size

    def is_done(rank: int) -> bool:
        group = waits[rank]
        return group is None or all(enqueued[one][group] >= enqueued[rank][group] for one in groups[group])

    for rank in moves:
        if not is_done(rank):
            continue
        if (group := waits[rank]) is not None:
            completed[rank][group], waits[rank] = enqueued[rank][group], None
        if rank != sleeper or total[rank] < sleeps_after:
            group = waits[rank] = next(plans[rank])
            enqueued[rank][group] += 1
            total[rank] += 1
    return [
        WorkerProgress(
            rank=rank,
            idle_s=0.0 if is_done(rank) and rank != sleeper else 30.0,
            collectives=tuple(
                ProcessGroupProgress(
                    name=str(one),
                    size=len(members),
                    enqueued=enqueued[rank][one],
                    completed=completed[rank][one],
                )
                for one, members in enumerate(groups)
                if rank in members and enqueued[rank][one]
            ),
        )
        for rank in range(world_size)
    ]


@settings(max_examples=80, deadline=None)
@given(job=jobs(), sleeper=st.integers(0, 7), sleeps_after=st.integers(0, 12), seed=st.integers(0, 2**32))
def test_a_sleeper_is_blamed_and_no_other(job: Job, sleeper: int, sleeps_after: int, seed: int) -> None:
    world_size, _, order = job
    sleeper %= world_size
    moves = random.Random(seed).choices(range(world_size), k=200 * world_size)
    verdict = find_hang(run(job, moves, sleeper, sleeps_after), world_size, node_of)
    assert verdict is not None
    assert verdict.kind == "behind"
    if verdict.ranks or sleeps_after >= len(
        order
    ):  # else a group was never used, and nobody knows its members
        assert verdict.ranks == (sleeper,)


@settings(max_examples=80, deadline=None)
@given(job=jobs(), length=st.integers(0, 200), seed=st.integers(0, 2**32))
def test_in_a_healthy_job_nobody_is_blamed(job: Job, length: int, seed: int) -> None:
    """At any moment: those who wait for others have done so for long, and those who can go on have moved lately."""
    moves = random.Random(seed).choices(range(job[0]), k=length)
    assert find_hang(run(job, moves), job[0], node_of) is None


def test_a_hang_with_its_time() -> None:
    verdict = find_hang(SLEEPER, 4, node_of)
    assert verdict is not None
    assert verdict.message(40).startswith("ranks 0 to 2 have waited 40 s for rank 3 (gpu2), which is at")


# -- bounds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 400, 2**40], ids=["two", "the world", "made up"])
@pytest.mark.parametrize("same", [False, True])
def test_places_are_bounded_by_what_workers_report(
    same: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process group of `size` members was expanded to a place for each of them: 32 times the world squared."""
    places: list[object] = []
    make = hangs.WorkerPosition

    def counted(*args: object) -> hangs.WorkerPosition:
        places.append(args)
        return make(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(hangs, "WorkerPosition", counted)
    workers = [
        WorkerProgress(
            rank=rank,
            idle_s=30,
            collectives=tuple(
                ProcessGroupProgress(
                    name=f"g{0 if same else rank}-{at}", size=size, enqueued=5, started=4, completed=4
                )
                for at in range(32)
            ),
        )
        for rank in range(400)
    ]
    assert find_hang(workers, 400, eights) is not None
    assert len(places) <= (32 + hangs.MAX_UNUSED_PLACES_PER_WORKER) * len(workers)


def eights(rank: int) -> str:
    """The node of a rank, of those with eight each."""
    return f"n{rank // 8}"
