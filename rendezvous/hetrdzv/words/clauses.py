"""Clauses about who is there, who is missing, and who met nobody: parts of sentences on waits and on failures."""

from collections.abc import Iterable

from hetrdzv.protocol.differences import Difference
from hetrdzv.protocol.facts.parts import Apart, NoMaster, NotReady, NoWorld, Ready, WorldBounds
from hetrdzv.protocol.texts.phrasing import count, names, one_or_more
from hetrdzv.protocol.texts.who import MOST_NAMES, Nodes


def never_met(apart: Apart) -> str:
    """What it means that the workers of a round have not met."""
    world = apart.world_size
    hint = "unless they meet in another way than init_process_group with env:// or hvd.init()"
    if apart.met:
        return f"only {apart.met} of {world} workers met: the others may have trained alone, {hint}"
    who = ", ".join(map(str, range(world))) if world <= MOST_NAMES else f"0 to {world - 1}"
    return f"ranks {who} never met: each may have trained alone, {hint}"


def standing(ready: Ready) -> str:
    """How many nodes there are, to be put before "ready": `2 of 3 nodes`, `3 nodes`, `2 nodes with 7 slots`."""
    there = len(ready.nodes)
    if ready.slots is not None:
        return f"{count(there, 'node')} with {count(ready.slots, 'slot')}"
    return f"{there} of {count(ready.want, 'node')}" if there <= ready.want else count(there, "node")


def may_not_be_master(nodes: Nodes, rule: str) -> str:
    """That no node that is ready may be master, and why."""
    return f"{one_or_more(nodes, 'it may not', 'none of them may')} be master, since master is {rule}"


def also_not_ready(reason: NotReady | None) -> str:
    """Which nodes are here but not ready, to be put after a sentence; else empty."""
    if reason is None:
        return ""
    first = reason.nodes.first[0]
    if len(reason.nodes) == 1:
        return f"; {first} is not ready: {reason.why}"
    return f"; {names(reason.nodes)} are not ready; {first}: {reason.why}"


def no_master(reason: NoMaster) -> str:
    """Which master cannot be reached from which nodes."""
    parts = [f"{cut_off.master} cannot be reached from {names(cut_off.nodes)}" for cut_off in reason.masters]
    if reason.more:
        parts.append(f"and {count(reason.more, 'more master')}")
    if reason.rule is not None:
        parts.append(f"master is {reason.rule}")
    return "; ".join(parts)


def no_world(reason: NoWorld) -> str:
    """Why nodes make no world, also whether they ever could."""
    sizes = world_sizes(reason.bounds)
    if reason.never:
        few = reason.never
        slots = count(few[0], "slot") if len(few) == 1 else f"{', '.join(map(str, few))} slots"
        if reason.never_more:
            slots += f" or {count(reason.never_more, 'other number')}"
        most = reason.bounds.max_nodes
        of = f" of at most {count(most, 'node')}" if most is not None else ""
        return f"nodes with {slots} can never form a world{of} whose size is {sizes}"
    if reason.too_small:
        return f"the world size must be {sizes}"
    if reason.unit is not None:
        return f"no set of whole units ({reason.unit}) has {_nodes_and_size(reason.bounds, sizes)}"
    return f"no set of them has a world size that is {sizes}"


def world_sizes(bounds: WorldBounds) -> str:
    """`from 8 to 16 and a multiple of 4`, to be put after "the world size must be"."""
    if bounds.smallest == bounds.largest:
        return str(bounds.smallest)
    parts = []
    if bounds.most is not None:
        parts.append(
            f"from {bounds.least} to {bounds.most}" if bounds.least > 1 else f"at most {bounds.most}"
        )
    elif bounds.least > 1:
        parts.append(f"at least {bounds.least}")
    if bounds.multiple > 1:
        parts.append(f"a multiple of {bounds.multiple}")
    return " and ".join(parts) or "at least 1"


def _nodes_and_size(bounds: WorldBounds, sizes: str) -> str:
    """What a set of nodes must have, in numbers."""
    least, most = bounds.min_nodes, bounds.max_nodes
    size = f"a world size that is {sizes}"
    if most is None:
        return size if least == 1 else f"at least {count(least, 'node')} and {size}"
    nodes = f"at most {count(most, 'node')}" if least == 1 else f"{least} to {count(most, 'node')}"
    any_size = bounds.least == 1 and bounds.most is None and bounds.multiple == 1
    return nodes if any_size else f"{nodes} and {size}"


def refused(node_id: str | None, differences: Iterable[Difference]) -> str:
    """`gpu2 is refused, since it gave script=other.py, and the group has script=train.py`."""
    differences = tuple(differences)
    has = ", ".join(f"{one.name}={one.group}" for one in differences)
    gave = ", ".join(f"{one.name}={one.given}" for one in differences)
    return f"{node_id} is refused, since it gave {gave}, and the group has {has}"
