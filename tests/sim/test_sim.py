"""Stories full of faults, a thousand fresh ones in make test-long, and the same story twice."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.sim.__main__ import tell
from tests.sim.faults import Faults
from tests.sim.world import run

SEEDS, CHUNK = 150, 50

FRESH = int(os.environ.get("SIM_FROM") or time.time_ns())
"""The first of a thousand seeds that nobody has tried; `make test-long` draws and prints it."""

happened: Counter[str] = Counter()
"""How often each fault was part of a story so far."""


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_whatever_goes_wrong_the_rules_hold(first: int) -> None:
    """A failing one is replayed by `python -m tests.sim --seeds 1 --from SEED -v`."""
    hold(range(first, first + CHUNK))


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(20))
def test_whatever_goes_wrong_in_stories_never_told_the_rules_hold(chunk: int) -> None:
    first = FRESH + chunk * CHUNK
    hold(range(first, first + CHUNK))


def hold(seeds: Iterable[int]) -> None:
    """Fail with the end of the first story in which a rule does not hold."""
    for seed in seeds:
        outcome = run(seed)
        if outcome.check:
            first_line = f"seed {outcome.seed}: {outcome.check}: {outcome.what}"  # all that a summary shows
            pytest.fail(f"{first_line}\n{tell(outcome, lines=80)}", pytrace=False)
        happened.update(outcome.counts)


def test_a_seed_tells_the_same_story_every_time() -> None:
    for seed in range(5):
        assert run(seed).trace == run(seed).trace


@pytest.mark.long
def test_a_seed_tells_the_same_story_in_every_process() -> None:
    """Neither the order of sets nor addresses in memory play a part."""
    command = [sys.executable, "-m", "tests.sim", "--seeds", "3", "-v"]
    stories = []
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        stories.append([line for line in done.stdout.splitlines() if "of CPU" not in line])
    assert stories[0] == stories[1]


def test_the_faults_happen_that_a_story_is_made_of() -> None:
    if not happened:  # it is run alone
        test_whatever_goes_wrong_the_rules_hold(0)
    faults = [name.replace("_", " ") for name in vars(Faults) if not name.startswith("_") and name != "plan"]
    assert [name for name in (*faults, *BESIDE) if not happened[name]] == []


BESIDE = """stop is announced, agent has a new node id, an agent that leaves serves what it holds, commit failed,
commit failed but was written, connection cut, load failed, master unreachable, reply late, reply lost,
request doubled, request late, request lost, server crashed before commit, server crashed between commit and reply,
script is hopeless, shards are copied, workers have saved""".replace("\n", " ").split(", ")
"""What else goes wrong."""
