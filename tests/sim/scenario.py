"""What a seed stands for: the group's spec, its nodes, the weather, and how its scripts behave."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hetrdzv.core.model import Node
from hetrdzv.protocol.errors import InvalidSpec
from hetrdzv.protocol.requests import SpecFields
from hetrdzv.protocol.settings import GroupSpec, OnJoin
from tests.support.every_set import Case, best_of_all, group_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Chances per request while faults go on."""

    lost: float
    reply_lost: float
    cut: float
    doubled: float
    late: float
    latency_s: float


MOST_MACHINES = 6
"""How many a story has at most."""

CALM = Weather(lost=0.0, reply_lost=0.0, cut=0.0, doubled=0.0, late=0.0, latency_s=0.002)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One story.

    Attributes:
        slots: of each machine at the start.
        labels, weights: of each machine, later ones included.
        separate: the spec promises that old workers end before new ones start, and no fault is told that the
            promise leaves out (docs/operations.md, Two writers of one checkpoint).
        faults: how many happen, within `story_s` seconds.
        work_s: how long a script runs until it succeeds (seconds); None: for ever.
        fails: chance that workers fail by themselves in a round.
        follows: chance that a worker fails when a peer of its round is gone.
        stubborn: chance that workers ignore SIGTERM.
        unfit: chance that a node's own check fails.
        deaf: chance that an agent knows no notices.
        saves: chance that workers save when they get a notice.
    """

    spec: SpecFields
    slots: tuple[int, ...]
    labels: tuple[Mapping[str, str], ...]
    weights: tuple[float, ...]
    separate: bool
    weather: Weather
    faults: int
    story_s: float
    work_s: float | None
    fails: float
    follows: float
    stubborn: float
    unfit: float
    deaf: float
    saves: float
    connect_timeout_s: float


def scenario(seed: int) -> Scenario:
    rng = random.Random(f"{seed}.scenario")
    kindness = random.Random(f"{seed}.kindness")
    nodes = rng.choice((2, 2, 3, 3, 3, 4, 5))
    separate = rng.random() < 0.3
    min_nodes = rng.randint(1, nodes)
    if separate:
        stop_timeout_s, max_disconnect_s = rng.uniform(0.5, 3), rng.uniform(3, 16)
        lease_s = 1.5 * max_disconnect_s + stop_timeout_s + rng.uniform(0.5, 4)
        min_nodes = rng.randint(1, max(1, nodes - 1))
    else:
        stop_timeout_s, max_disconnect_s = rng.uniform(0.3, 5), rng.uniform(2, 40)
        lease_s = rng.choice((2.0, 3.0, 5.0, 8.0))
    spec = SpecFields(
        min_nodes=min_nodes,
        max_nodes=rng.choice((None, nodes, max(min_nodes, nodes - 1), nodes + 1)),
        max_restarts=rng.choice((0, 1, 2, 3, 5, 50, 50)),
        join_timeout_s=rng.choice((15.0, 60.0, 600.0)),
        last_call_s=rng.uniform(0.2, 3),
        replace_wait_s=rng.choice((0.0, 0.0, 2.0, 6.0)),
        stop_timeout_s=round(stop_timeout_s, 3),
        lease_s=round(lease_s, 3),
        max_disconnect_s=round(max_disconnect_s, 3),
        on_join=rng.choice(tuple(OnJoin)),
        no_restart_on=rng.choice(((), (), (), (1,))),
        restart_wait_s=rng.choice((0.0, 2.0, 60.0)),
        notice_s=kindness.choice((0.0, 0.0, 0.5, 3.0, 20.0)),
        hang_timeout_s=rng.choice((None, 2.0, 10.0)),
        **_order(random.Random(f"{seed}.order")),
    )
    if spec["max_nodes"] is not None:  # a machine that comes later may make a rack too large
        spec = spec | {"unit": None}
    bad = rng.choice((0.0, 0.01, 0.03))
    weather = Weather(
        lost=0.0 if separate else bad * rng.random(),
        reply_lost=0.0 if separate else bad * rng.random(),
        cut=0.0 if separate else bad * rng.random(),
        doubled=rng.choice((0.0, 0.02, 0.1)),
        late=0.0 if separate else rng.choice((0.0, 0.02, 0.1)),
        latency_s=rng.choice((0.001, 0.01, 0.1)),
    )
    made = Scenario(
        spec=spec,
        slots=tuple(rng.choice((1, 2, 4, 8)) for _ in range(nodes)),
        labels=tuple(_labels(seed, number) for number in range(MOST_MACHINES)),
        weights=tuple(
            random.Random(f"{seed}.weight.{number}").choice((1.0, 0.5, 2.0))
            for number in range(MOST_MACHINES)
        ),
        separate=separate,
        weather=weather,
        faults=rng.randint(2, 12),
        story_s=rng.uniform(30, 90),
        work_s=rng.choice((None, None, rng.uniform(5, 40))),
        fails=rng.choice((0.0, 0.1, 0.3)),
        follows=rng.choice((0.5, 1.0) if separate else (0.0, 0.5, 1.0)),
        stubborn=rng.choice((0.0, 0.2, 0.6)),
        connect_timeout_s=rng.choice((8.0, 60.0)),
        unfit=rng.choice((0.0, 0.0, 0.1, 0.4)),
        deaf=kindness.choice((0.0, 0.0, 0.3, 1.0)),
        saves=kindness.choice((0.3, 1.0, 1.0)),
    )
    return replace(made, spec=spec | _worlds(seed, made))


def _worlds(seed: int, made: Scenario) -> dict[str, object]:
    """Bounds of the world size that all machines together can keep, in half of the stories, and a pause in some."""
    rng = random.Random(f"{seed}.worlds")
    pause: dict[str, object] = {"growth_pause_s": rng.choice((1.0, 5.0, 15.0))} if rng.random() < 0.3 else {}
    if rng.random() < 0.5:
        return pause
    total = sum(made.slots)
    worlds = {
        "min_world_size": rng.choice((None, rng.randint(1, total))),
        "max_world_size": rng.choice((None, rng.randint(1, total))),
        "world_size_multiple": rng.choice((1, 2, 2, 3, 4, 8)),
        "unit": None,
    }
    try:
        spec = GroupSpec(**made.spec | worlds)
    except InvalidSpec:
        return pause
    nodes = [
        Node(node_id=f"n{number + 1}", incarnation="any", slots=slots, address="any", port=1, labels=labels)
        for number, (slots, labels) in enumerate(zip(made.slots, made.labels, strict=False))
    ]
    return pause if best_of_all(Case(group_of(spec), nodes)) is None else pause | worlds


def _order(rng: random.Random) -> dict[str, Any]:
    orders = ("sticky", "sticky", "topology:rack", "topology:zone,rack")
    return {
        "rank_order": rng.choice(orders),
        "master": rng.choice((None, None, None, "public=yes")),
        "unit": rng.choice((None, None, None, "rack")),
    }


def _labels(seed: int, number: int) -> Mapping[str, str]:
    """The labels of a machine; the first may always be master."""
    rng = random.Random(f"{seed}.labels.{number}")
    labels = {"zone": rng.choice("xy"), "rack": rng.choice("12")}
    if number == 0 or rng.random() < 0.5:
        labels["public"] = "yes"
    return {name: value for name, value in labels.items() if name == "public" or rng.random() < 0.9}
