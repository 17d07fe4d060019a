"""Stories full of faults, a thousand fresh ones in make test-long, and the same story twice."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.sim.__main__ import tell
from tests.sim.world import run

SEEDS, CHUNK = 150, 50

FRESH = int(os.environ.get("SIM_FROM") or time.time_ns())
"""The first of a thousand seeds that nobody has tried; `make test-long` draws and prints it."""

FAILED_ONCE = {
    8_000_957: "a failure in the notice of a drain, and the drained node stops without a goodbye",
    8_108_632: "the same, and the drained node is let in again before it has exited",
    8_101_925: "a node of a unit came back under another name, and its agent was restarted",
    8_109_083: "the same before the first round",
    8_113_659: "the same after a goodbye",
    20_008_260: "a late report on a master that could not be reached, after its agent was restarted",
    8_108_865: "a node of a unit came back under another name before its lease had ended",
    120_010_423: "the same, and a join of the old name comes late",
    90_003_305: "the same while another node of the unit is lost, which then comes back",
    70_010_666: "a lost agent says that it leaves, and a join that it sent before brings its node back",
    160_013_307: "the same, but a person drained the old name before, and lets it in again after it",
    160_013_846: "all workers succeed in the notice of a cancellation, and agents are started again at once",
    170_027_660: "a node says that it leaves, and the first report comes after ten seconds, with the second",
    170_004_260: "a node that has succeeded is lost at the moment at which its round is judged",
    97_011_838: "the answer that tells a node to stop is lost, since the node is cut off",
    97_011_357: "a server is killed while it stands still in the middle of a commit",
    1_950: "nodes that hear nothing overwrite the snapshot that the server has just told others is safe",
    1_027: "the same as a round ends, by what its node had kept of a step that nobody else has",
    2_100: "the same as a round ends, though it had a snapshot that is newer and less likely to be safe",
    9_001_088: "nodes whose answers are lost overwrite what others have copies of, as they begin from something newer",
    9_000_285: "a round hangs for so long that its members are told",
    41_006_238: "as a round ends during an outage all nodes overwrite the same one of two that may be safe",
    41_004_138: "a node that was away keeps an older snapshot that is safe rather than a newer that it has all of",
    64_003_772: "the only member of a round is told that what other nodes have once each is safe",
    66_000_178: "a node that has nothing of what its round began from overwrites the only parts of the one before",
    67_006_493: "a stop comes as the workers end by themselves, and after it the next start",
}
"""Seeds that have found a fault of the rules, or of the simulation, and what happens in them."""

happened: Counter[str] = Counter()
"""How often each fault was part of a story so far."""


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_whatever_goes_wrong_the_rules_hold(first: int) -> None:
    """A failing one is replayed by `python -m tests.sim --seeds 1 --from SEED -v`."""
    hold(range(first, first + CHUNK))


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_what_has_failed_once_holds_now(seed: int) -> None:
    hold([seed])


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
            pytest.fail(tell(outcome, lines=80), pytrace=False)
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
    assert [name for name in FAULTS if not happened[name]] == []


FAULTS = (
    "agent and guardian are killed",
    "agent gets sigterm",
    "stop is announced",
    "agent has a new node id",
    "agent is killed",
    "agent stands still",
    "an agent that leaves serves what it holds",
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
    "shards are copied",
    "worker fails",
    "worker fails and machine is lost",
    "workers have saved",
)
