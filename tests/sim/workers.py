"""The workers of one node in one round: when they fail, succeed, and how they take SIGTERM."""

import random
from dataclasses import dataclass
from enum import Enum

from tests.sim.scenario import Scenario


class Fate(Enum):
    """How workers end that nobody stops."""

    FAIL = "fail"
    SUCCEED = "succeed"
    NONE = "none"


@dataclass(slots=True, eq=False)
class Workers:
    """Model workers.

    Attributes:
        alive: whether any process of them runs.
        failed: whether one of them has failed; the others may run on.
        term_s: seconds from SIGTERM to their end; None: they ignore it.
    """

    node_id: str
    incarnation: str
    round: int
    fate: Fate
    after_s: float
    term_s: float | None
    alive: bool = True
    failed: bool = False


def make_workers(
    node_id: str, incarnation: str, number: int, rng: random.Random, scenario: Scenario, *, calm: bool
) -> Workers:
    term_s = None if rng.random() < scenario.stubborn else rng.uniform(0.01, 0.6)
    if rng.random() < (0.0 if calm else scenario.fails):
        return Workers(node_id, incarnation, number, Fate.FAIL, rng.uniform(0.1, 12), term_s)
    if scenario.work_s is not None:
        after_s = scenario.work_s + rng.uniform(0, 1.5)
        return Workers(node_id, incarnation, number, Fate.SUCCEED, after_s, term_s)
    return Workers(node_id, incarnation, number, Fate.NONE, 0.0, term_s)
