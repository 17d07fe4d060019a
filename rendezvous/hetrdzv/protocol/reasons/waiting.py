"""What a group does or waits for, and why a node is in no round: computed when somebody asks, never stored."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hetrdzv.protocol.reasons.reason import Reason, ReasonCode, make_reason, with_message
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.texts.node_rank_lists import MAX_LISTED_NODES, NO_NODES, NodeList
from hetrdzv.protocol.texts.phrasing import clip_text, count_text, nodes_are

# -- who is there, and who is not ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadyCount:
    """Which nodes are ready, of how many; `slots` they have where it is not nodes that are missing."""

    nodes: NodeList = NO_NODES
    want: int = 1
    slots: int | None = None

    def __str__(self) -> str:
        """`2 of 3 nodes ready (a, b)`, `3 nodes ready (a, b, c)`, `2 nodes with 7 slots ready (a, b)`."""
        there = len(self.nodes)
        if not there:
            return "no node is ready"
        of = (
            f"{there} of {count_text(self.want, 'node')}" if there <= self.want else count_text(there, "node")
        )
        if self.slots is not None:
            of = f"{count_text(there, 'node')} with {count_text(self.slots, 'slot')}"
        return f"{of} ready ({self.nodes})"


def no_valid_world_size(spec: GroupSpec, never: Sequence[int], *, too_small: bool) -> str:
    """Why nodes make no world; `never`: no number of nodes with so many slots each ever makes one."""
    sizes = allowed_world_sizes_text(spec)
    if never:
        slots = ", ".join(map(str, never[:MAX_LISTED_NODES]))
        return f"nodes with these slots ({slots}) can never form a world whose size is {sizes}"
    if too_small:
        return f"the world size must be {sizes}"
    whom = "no set of them" if spec.unit is None else f"no set of whole units ({spec.unit})"
    return f"{whom} has a world size that is {sizes}"


def allowed_world_sizes_text(spec: GroupSpec) -> str:
    """`from 8 to 16 and a multiple of 4`, to be put after "the world size must be"."""
    least, most, multiple = spec.min_world_size or 1, spec.max_world_size, spec.world_size_multiple
    if least == most:
        return str(most)
    parts = [f"from {least} to {most}" if most is not None else f"at least {least}"]
    if multiple > 1:
        parts.append(f"a multiple of {multiple}")
    return " and ".join(parts)


# -- the job and its round -----------------------------------------------------------------------------------


def round_about_to_end(number: int, why: Reason, nodes: Iterable[str], until: float) -> Reason:
    """A round is about to end: these nodes may save until they are ready to stop."""
    who = NodeList.of(nodes)
    text = f"round {number} is about to end ({why}); waiting for {who} to save and be ready to stop"
    return make_reason(ReasonCode.STOP_ANNOUNCED, text, nodes=who, round=number, until=until)


def round_running(number: int, nodes: int, world_size: int, apart: Reason | None = None) -> Reason:
    """A round runs on so many nodes; `apart`: that its workers have not met, so far."""
    so_far = f"; so far {apart}" if apart is not None else ""
    text = f"round {number} runs on {count_text(nodes, 'node')}, world size {world_size}{so_far}"
    return make_reason(ReasonCode.ROUND_RUNNING, text, round=number, world_size=world_size)


# -- a group waits -------------------------------------------------------------------------------------------


def no_reachable_master(
    cut_off: Mapping[str, Collection[str]], rule: str | None, until: float | None = None
) -> Reason:
    """Which master (of the first few) cannot be reached from which nodes."""
    masters = NodeList.of(cut_off)
    parts = [f"{name} cannot be reached from {NodeList.of(cut_off[name])}" for name in masters.first]
    if masters.more:
        parts.append(f"and {count_text(masters.more, 'more master')}")
    if rule is not None:
        parts.append(f"master is {rule}")
    text = f"no node can be master: {'; '.join(parts)}"
    return make_reason(ReasonCode.NO_MASTER, text, nodes=masters, until=until)


def too_few_nodes(
    ready: ReadyCount,
    missing: int,
    *,
    unit: str = "node",
    world: str | None = None,
    since: float | None = None,
    until: float | None = None,
) -> Reason:
    """More nodes are needed.

    Args:
        missing: how many nodes or slots (`unit`) more; 0: other ones.
        world: why those that are ready make no world (`no_valid_world_size`); None: they are just too few.
        since: when the last node went, none being here.
    """
    have = ready if since is None else "no agents connected"
    if world is None:
        text = f"{have}; waiting for {missing} more"
    else:
        text = f"{have}; {world}: waiting for {count_text(missing, 'more slot') if missing else 'others'}"
    code = ReasonCode.TOO_FEW_NODES if unit == "node" else ReasonCode.TOO_FEW_SLOTS
    return make_reason(code, text, since=since, until=until, missing=missing, ready=len(ready.nodes))


def waits_for_replacement(waits: Reason, gone: Iterable[str], drained: Iterable[str] = ()) -> Reason:
    """What a group waits for, with those who could come back: the drained nodes, else the former members."""
    back, away = NodeList.of(drained), NodeList.of(gone)
    who, data = back or away, {**waits.data, "drained": 1} if back else waits.data
    message = f"{waits} in place of {away}" if away else waits.message
    return with_message(waits, message, nodes=who.first, more_nodes=who.more, data=data)


def with_not_ready_nodes(waits: Reason, late: Reason) -> Reason:
    """What a group waits for, with the nodes that are here but not ready (`nodes_not_ready`)."""
    who = late.who
    text = f"{waits}; {nodes_are(who)} not ready{': ' if len(who) == 1 else f'; {who.first[0]}: '}{late}"
    return with_message(waits, text, data={**waits.data, "not_ready": who.first[0]})


# -- a node is in no round: clauses, to be put after its name -------------------------------------------------


def nodes_not_ready(who: NodeList, why: str) -> Reason:
    """Nodes have said that they cannot take part; what the first of them has said."""
    return make_reason(ReasonCode.NODE_NOT_READY, clip_text(why), nodes=who, quote=why)


def node_left_out(number: int, node_id: str, why: Reason) -> Reason:
    """A round runs without a node: the reason for that as a whole sentence."""
    return with_message(why, f"round {number} runs without {node_id}: {why}", round=number)
