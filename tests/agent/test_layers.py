"""Direction of imports in the agent: each folder has a place in one order, and imports what is below it."""

from collections.abc import Sequence

from tests.test_imports import AGENT, graph

ORDER: Sequence[str] = (
    "errors",
    "statuses",
    # what scripts and workers import
    "progress",
    "shares",
    "work_timer",
    "uneven",
    "torch_compat.checkpoints",
    "snapshots",
    "worker",
    # what is asked for, and what is here
    "options",
    "torch_compat",
    "node",
    "node.processes",
    "node.gpu",
    "session",
    # starting workers
    "launch.command",
    "launch.base",
    "launch.node",
    "launch.mpi",
    "launch",
    "context",
    "workers",
    "roundhook",
    # optional parts
    "health",
    "health.check_command",
    "preemption",
    "monitor",
    "standby",
    "snapshots.node",
    # all of it
    "runloop",
    "cli",
    "torchrun",
    "__main__",
)
"""Folders, modules at the top, and where two halves of a folder differ, single ones of it: the lowest first."""


def rank(module: str) -> int:
    """The place of a module: that of the longest name in the order that it is, or is in."""
    name = module.removeprefix("hetagent.")
    fitting = [each for each in ORDER if name == each or name.startswith(f"{each}.")]
    assert fitting, f"{module} is in no folder of the order"
    return ORDER.index(max(fitting, key=len))


def test_imports_go_downwards() -> None:
    edges = graph(AGENT, AGENT.keys())
    del edges["hetagent"]
    pairs = [(name, imported) for name, of in edges.items() for imported in of - {"hetagent"}]
    assert [(name, imported) for name, imported in pairs if rank(imported) > rank(name)] == []


def test_every_entry_of_the_order_is_there() -> None:
    known = graph(AGENT, AGENT.keys())
    assert [
        each
        for each in ORDER
        if not any(rank(name) == ORDER.index(each) for name in known if name != "hetagent")
    ] == []
