"""Stories full of faults, a thousand of them with HET_TEST_ALL=1, and the same story twice."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.sim.__main__ import tell
from tests.sim.world import run
from tests.support.needs import ALL

SEEDS, CHUNK = 1000 if os.environ.get(ALL) == "1" else 100, 50

happened: Counter[str] = Counter()
"""How often each fault was part of a story so far."""


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_whatever_goes_wrong_the_rules_hold(first: int) -> None:
    """A failing one is replayed by `python -m tests.sim --seeds 1 --from SEED -v`."""
    for seed in range(first, first + CHUNK):
        outcome = run(seed)
        if outcome.check:
            pytest.fail(tell(outcome, lines=80), pytrace=False)
        happened.update(outcome.counts)


def test_a_seed_tells_the_same_story_every_time() -> None:
    for seed in range(5):
        assert run(seed).trace == run(seed).trace


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
    assert [name for name in FAULTS if not happened[name]] == []


FAULTS = (
    "agent and guardian are killed",
    "agent gets sigterm",
    "agent has a new node id",
    "agent is killed",
    "agent stands still",
    "commit failed",
    "commit failed but was written",
    "connection cut",
    "connections are cut",
    "disk is in trouble",
    "load failed",
    "machine is cut off and a peer fails",
    "machine loses power",
    "master unreachable",
    "node is new",
    "one way partition",
    "partition",
    "person cancels",
    "person drains",
    "person restarts",
    "reply late",
    "reply lost",
    "request doubled",
    "request late",
    "request lost",
    "server crashed before commit",
    "server crashed between commit and reply",
    "script is hopeless",
    "server crashes",
    "server stands still",
    "server stops",
    "slow node",
    "worker fails",
    "worker fails and machine is lost",
    "workers have saved",
)
