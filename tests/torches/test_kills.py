"""A job on uneven nodes whose workers are killed again and again, with the torch that is installed."""

import os
import random
from pathlib import Path

import pytest

from tests.support.cluster import PAIR, cluster
from tests.support.needs import needs_set_up

KILLS = 10

WAIT_S = 240.0
"""Torch's CUDA builds take seconds to import, and much longer on a busy machine."""


@pytest.mark.gloo
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("preload", ["none", "torch"], ids=["cold", "standbys"])
def test_every_kill_is_recovered_from(tmp_path: Path, preload: str) -> None:
    needs_set_up("torch")
    rng, size = random.Random(1), sum(PAIR.values())
    flags = ("--nnodes", "2", "--max-restarts", "30", "--stop-timeout-s", "5", "--preload", preload)
    with cluster(tmp_path, *flags) as job:

        def world(after: int) -> int:
            found = job.wait_for(
                lambda: job.log.world(size, round_above=after), f"a round after {after}", WAIT_S
            )
            return found.round

        for name, slots in PAIR.items():
            job.agent(name, slots)
        number = world(0)
        for kill in range(1, KILLS + 1):
            if preload != "none":
                job.wait_for(
                    lambda: sum(len(job.agents[name].standbys()) for name in PAIR) == size, "standbys", WAIT_S
                )
            os.kill(rng.choice(sorted({line["pid"] for line in job.lines(round=number)})), 9)
            number = world(number)
            assert {line["restart"] for line in job.lines(round=number)} == {kill}, job.report()
        assert not (wrong := job.complaints()), wrong
        job.end_well(*PAIR)
