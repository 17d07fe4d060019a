"""Measured speeds, end to end: they reach the server with the join, and a slot that is too slow is named everywhere."""

import os

import pytest

from hetagent.node.gpu.devices import Devices
from hetagent.node.gpu.versions import versions
from hetagent.sharing import cache
from hetagent.sharing.subject import subject
from tests.support.cluster import PAIR, Cluster, wait_for


def keep(slots: int, *speeds: float) -> None:
    """Put speeds into the cache, as if CPU workers had been measured here."""
    chosen = Devices(kind="cpu", indices=(), slots=slots)
    measured = subject(chosen, slots, "auto", versions(), os.environ, cpu=True)
    cache.write(cache.folder(os.environ), measured.key, speeds)


@pytest.mark.long
def test_a_node_that_is_too_slow_is_named_on_all_nodes(
    pair: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(pair.folder))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    keep(2, 1.0, 1.0)
    keep(1, 0.25)
    pair.flags = (*pair.flags, "--measure", "on")
    pair.start(PAIR)
    group = pair.group()
    assert {node["node_id"]: node["speeds"] for node in group["nodes"]} == {"a": [1.0, 1.0], "b": [0.25]}
    [warning] = group["warnings"]
    assert warning.startswith("b is 75% slower than usual for ")
    for name in "ab":
        agent = pair.agents[name]
        wait_for(lambda agent=agent: f"warning: {warning}" in agent.stderr, "the warning")  # type: ignore[misc]
    assert "TFLOP/s (measured earlier; to measure again: --measure again)" in pair.agents["a"].stderr
    pair.end_well("a", "b")


@pytest.mark.long
def test_nodes_measure_themselves_before_they_join(pair: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(pair.folder))
    pair.flags = (*pair.flags, "--measure", "again")
    pair.start(PAIR)
    for name, slots in PAIR.items():
        [line] = [line for line in pair.agents[name].stderr.splitlines() if "speed of float32" in line]
        assert f" on {slots} x " in line
        assert "TFLOP/s (measured now" in line
    nodes = pair.group()["nodes"]
    assert [
        (node["measured"]["dtype"], [alike["slots"] for alike in node["measured"]["on"]]) for node in nodes
    ] == [("float32", [2]), ("float32", [1])]
    pair.end_well("a", "b")
