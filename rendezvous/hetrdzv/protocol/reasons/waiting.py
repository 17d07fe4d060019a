"""What a group does or waits for, and why a node is in no round: computed when somebody asks, never stored."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hetrdzv.protocol.reasons.reason import Reason, ReasonCode, clipped, reason
from hetrdzv.protocol.texts.phrasing import count, names, one_or_more
from hetrdzv.protocol.texts.who import NOBODY, Nodes

# -- who is there, and who is not ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """Which nodes are ready, of how many; `slots` they have where it is not nodes that are missing."""

    nodes: Nodes = NOBODY
    want: int = 1
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class NotReady:
    """Nodes are here, but have said that they cannot take part; what the first of them has said."""

    nodes: Nodes
    why: str


@dataclass(frozen=True, slots=True)
class CutOff:
    """A master that these nodes cannot reach."""

    master: str
    nodes: Nodes


@dataclass(frozen=True, slots=True)
class NoMaster:
    """No node can be master: the first few, how many more there are, and the setting `master`."""

    masters: tuple[CutOff, ...]
    more: int = 0
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class WorldBounds:
    """The world sizes that a group allows, and how many nodes may make one.

    Attributes:
        least, most: bounds in slots; most is None where there is none.
        multiple: every world size is a multiple of it.
        min_nodes, max_nodes: bounds in nodes.
    """

    least: int
    most: int | None
    multiple: int
    min_nodes: int
    max_nodes: int | None

    @property
    def smallest(self) -> int:
        """The smallest world size of all."""
        return -(-self.least // self.multiple) * self.multiple

    @property
    def largest(self) -> int | None:
        """The largest world size of all; None where there is no bound."""
        return None if self.most is None else self.most - self.most % self.multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class NoWorld:
    """Nodes make no world whose size is allowed.

    Attributes:
        never: no number of nodes with such slots ever makes one: the lowest few, and how many more there are.
        too_small: they have too few slots.
        unit: the label whose units must be whole; None: there are none.
    """

    bounds: WorldBounds
    never: tuple[int, ...] = ()
    never_more: int = 0
    too_small: bool = False
    unit: str | None = None


def standing(ready: Ready) -> str:
    """How many nodes there are, to be put before "ready": `2 of 3 nodes`, `3 nodes`, `2 nodes with 7 slots`."""
    there = len(ready.nodes)
    if ready.slots is not None:
        return f"{count(there, 'node')} with {count(ready.slots, 'slot')}"
    return f"{there} of {count(ready.want, 'node')}" if there <= ready.want else count(there, "node")


def also_not_ready(of: NotReady | None) -> str:
    """Which nodes are here but not ready, to be put after a sentence; else empty."""
    if of is None:
        return ""
    first = of.nodes.first[0]
    if len(of.nodes) == 1:
        return f"; {first} is not ready: {clipped(of.why)}"
    return f"; {names(of.nodes)} are not ready; {first}: {clipped(of.why)}"


def may_not_be_master(nodes: Nodes, rule: str) -> str:
    """That no node that is ready may be master, and why."""
    return f"{one_or_more(nodes, 'it may not', 'none of them may')} be master, since master is {rule}"


def no_master(of: NoMaster) -> str:
    """Which master cannot be reached from which nodes."""
    parts = [f"{cut_off.master} cannot be reached from {names(cut_off.nodes)}" for cut_off in of.masters]
    if of.more:
        parts.append(f"and {count(of.more, 'more master')}")
    if of.rule is not None:
        parts.append(f"master is {of.rule}")
    return "; ".join(parts)


def no_world(of: NoWorld) -> str:
    """Why nodes make no world, also whether they ever could."""
    bounds = of.bounds
    sizes = world_sizes(bounds)
    if of.never:
        slots = count(of.never[0], "slot") if len(of.never) == 1 else f"{', '.join(map(str, of.never))} slots"
        if of.never_more:
            slots += f" or {count(of.never_more, 'other number')}"
        most = f" of at most {count(bounds.max_nodes, 'node')}" if bounds.max_nodes is not None else ""
        return f"nodes with {slots} can never form a world{most} whose size is {sizes}"
    if of.too_small:
        return f"the world size must be {sizes}"
    if of.unit is not None:
        return f"no set of whole units ({of.unit}) has {_nodes_and_size(bounds, sizes)}"
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


# -- the job and its round -----------------------------------------------------------------------------------


def round_starting(number: int, nodes: Iterable[str]) -> Reason:
    """A round is starting: these nodes have not started their workers yet."""
    who = Nodes.of(nodes)
    text = f"round {number} is starting: waiting for {names(who)} to start {_its(who)} workers"
    return reason(ReasonCode.ROUND_STARTING, text, nodes=who, round=number)


def about_to_end(number: int, why: Reason, nodes: Iterable[str], until: float) -> Reason:
    """A round is about to end: these nodes may save until they are ready to stop."""
    who = Nodes.of(nodes)
    text = f"round {number} is about to end ({why}); waiting for {names(who)} to save and be ready to stop"
    return reason(ReasonCode.STOP_ANNOUNCED, text, nodes=who, round=number, until=until)


def round_running(
    number: int, nodes: int, world_size: int, apart: Reason | None = None, lost: Iterable[str] = ()
) -> Reason:
    """A round runs on so many nodes.

    Args:
        apart: that its workers have not met, so far.
        lost: nodes of the job that the round would take in again.
    """
    so_far = f"; so far {apart}" if apart is not None else ""
    text = f"round {number} runs on {count(nodes, 'node')}, world size {world_size}{so_far}"
    return reason(ReasonCode.ROUND_RUNNING, text, nodes=lost, round=number, world_size=world_size)


# -- a group waits -------------------------------------------------------------------------------------------


def stopping(nodes: Iterable[str], *, checked: bool, until: float | None = None) -> Reason:
    """Nodes stop the workers of a round that has ended; some then check whether they are ready (`checked`)."""
    who = Nodes.of(nodes)
    have = one_or_more(who, "has", "have")
    text = f"{names(who)} {have} to stop {_its(who)} workers{' and be ready again' if checked else ''}"
    return reason(ReasonCode.STOPPING, text, nodes=who, until=until)


def no_allowed_master(ready: Ready, rule: str, until: float | None = None) -> Reason:
    """No node that is ready is one that the setting `master` allows."""
    text = f"{_have(ready)}, but {may_not_be_master(ready.nodes, rule)}; waiting for one that may"
    return reason(ReasonCode.NO_ALLOWED_MASTER, text, nodes=ready.nodes, until=until)


def no_command(group_id: str, nodes: Iterable[str]) -> Reason:
    """Nodes were started without a script, and the group has no command yet."""
    who = Nodes.of(nodes)
    text = (
        f"{names(who)} {one_or_more(who, 'was', 'were')} started without a script, and group '{group_id}' has no "
        f"command yet: give hetagent one, or: hetctl create {group_id} -- train.py"
    )
    return reason(ReasonCode.NO_COMMAND, text, nodes=who)


def too_few(
    ready: Ready,
    missing: int,
    *,
    unit: str = "node",
    world: NoWorld | None = None,
    gone: Iterable[str] = (),
    drained: Iterable[str] = (),
    since: float | None = None,
    until: float | None = None,
) -> Reason:
    """More nodes are needed.

    Args:
        missing: how many nodes or slots (`unit`) more; 0: other ones.
        world: why those that are ready make no world; None: they are just too few.
        gone: members of the last round that are gone.
        drained: nodes that a person has drained: of those members, or if none is gone, at all.
        since: when the last node went, none being here; None: some are, or none is known to have been.
        until: when the group gives up; None: it does not.
    """
    lack = f"; {no_world(world)}" if world is not None else ""
    more = str(missing) if world is None else count(missing, "more slot") if missing else "others"
    have = _have(ready) if since is None else "no agents connected"
    waits = f"waiting for {more}{' more' if world is None else ''}"
    text = f"{have}{lack}{': ' if world is not None else '; '}{waits}{_in_place_of(Nodes.of(gone))}"
    code = ReasonCode.TOO_FEW_NODES if unit == "node" else ReasonCode.TOO_FEW_SLOTS
    return _missing(
        code, text, gone, drained, since=since, until=until, missing=missing, ready=len(ready.nodes)
    )


def no_reachable_master(
    ready: Ready,
    of: NoMaster,
    *,
    gone: Iterable[str] = (),
    drained: Iterable[str] = (),
    until: float | None = None,
) -> Reason:
    """Nodes are ready, but none can be master of the others; see `too_few`."""
    instead = _in_place_of(Nodes.of(gone))
    text = f"{_have(ready)}, but none can be master ({no_master(of)}); waiting for more{instead}"
    return _missing(
        ReasonCode.NO_MASTER, text, gone, drained, since=None, until=until, ready=len(ready.nodes)
    )


def _missing(
    code: ReasonCode,
    text: str,
    gone: Iterable[str],
    drained: Iterable[str],
    *,
    since: float | None,
    until: float | None,
    ready: int,
    missing: int | None = None,
) -> Reason:
    """Nodes are missing: `nodes` are those that could come back, the drained ones if there are any."""
    back = Nodes.of(drained)
    return reason(
        code,
        text,
        nodes=back or Nodes.of(gone),
        since=since,
        until=until,
        missing=missing,
        ready=ready,
        drained=1 if back else None,
    )


def reconnecting(ready: Ready, nodes: Iterable[str]) -> Reason:
    """The connection to these nodes was lost; the round does not form before they are heard again, or lost."""
    who = Nodes.of(nodes)
    them = one_or_more(who, "it", "them")
    text = f"{_have(ready)}; lost the connection to {names(who)}, waiting to hear from {them} again"
    return reason(ReasonCode.RECONNECTING, text, nodes=who)


def restart_backoff(ready: Ready, restart: int, of: int | None, quick: int, until: float) -> Reason:
    """A restart waits, since so many (`quick`) came in quick succession; `of`: the budget, None: without limit."""
    which = str(restart) if of is None else f"{restart} of {of}"
    text = f"{_have(ready)}; restart {which} waits, since {quick} came in quick succession"
    return reason(ReasonCode.RESTART_BACKOFF, text, nodes=ready.nodes, until=until, quick=quick)


def last_call(
    ready: Ready,
    until: float,
    *,
    replacement: bool = False,
    or_nodes: int | None = None,
    or_slots: int | None = None,
) -> Reason:
    """A round forms soon: others may still come, or a replacement for a member that is gone.

    Args:
        or_nodes, or_slots: it forms at once when so many are ready; None: no number of them shortens it.
    """
    what = "waiting for a replacement" if replacement else "last call for others"
    most = f", or until {or_nodes} are ready" if or_nodes is not None else ""
    if or_slots is not None:
        most += f", or until nodes with {count(or_slots, 'slot')} are"
    return reason(ReasonCode.LAST_CALL, f"{_have(ready)}; {what}{most}", nodes=ready.nodes, until=until)


def also(waits: Reason, not_ready: NotReady | None, ended: Reason | None) -> Reason:
    """What a group waits for, with the nodes that are not ready and the end of its last round."""
    late = also_not_ready(not_ready)
    known = reason(ReasonCode(waits.code), f"{waits}{late}") if late else waits
    return replace(waits, message=known.message, cause=ended)


def _have(ready: Ready) -> str:
    return f"{standing(ready)} ready ({names(ready.nodes)})" if ready.nodes else "no node is ready"


def _in_place_of(gone: Nodes) -> str:
    return f" in place of {names(gone)}" if gone else ""


def _its(nodes: Nodes) -> str:
    return one_or_more(nodes, "its", "their")


# -- a node is in no round: clauses, to be put after its name -------------------------------------------------


def not_ready(node_id: str, why: str) -> Reason:
    """A node has said that it cannot take part."""
    return reason(ReasonCode.NODE_NOT_READY, clipped(why), nodes=[node_id], quote=why)


def joins_next_round(node_id: str, until: float) -> Reason:
    """The running round will restart to include a node."""
    text = "the round is going to restart to include it"
    return reason(ReasonCode.JOINS_NEXT_ROUND, text, nodes=[node_id], until=until)


def on_join_spare(node_id: str) -> Reason:
    """`on_join` is spare."""
    return reason(ReasonCode.ON_JOIN_SPARE, "on_join is spare", nodes=[node_id])


def others_succeeded(node_id: str) -> Reason:
    """Workers of the round have succeeded: it restarts for nobody."""
    text = "workers on other nodes have already succeeded"
    return reason(ReasonCode.OTHERS_SUCCEEDED, text, nodes=[node_id])


def world_not_larger(node_id: str) -> Reason:
    """The world would not be larger."""
    return reason(ReasonCode.WORLD_NOT_LARGER, "the world would not be larger with it", nodes=[node_id])


def max_nodes(node_id: str, most: int | None) -> Reason:
    """The round has as many nodes as `max_nodes` allows."""
    return reason(ReasonCode.MAX_NODES, f"max_nodes is {most}", nodes=[node_id], max_nodes=most)


def out_of_reach(node_id: str, master: str, address: str, *, loopback: bool = False) -> Reason:
    """A node cannot reach the master, or (`loopback`) nobody on another host can."""
    if loopback:
        text = (
            f"{master}, the master, offers address {address}, which no other host can reach: start hetagent there "
            "with --local-addr or --interface"
        )
    else:
        text = (
            f"it could not reach {master} at {address}: check the firewall, --port-range and --interface, then "
            "restart its agent"
        )
    return reason(ReasonCode.OUT_OF_REACH, text, nodes=[node_id], master=master, address=address)


def world_size(
    node_id: str, slots: int, size: int, bounds: WorldBounds, *, nodes: int = 1, unit: str | None = None
) -> Reason:
    """With a node, or the `nodes` of its unit, the world size would be one that is not allowed."""
    whose = f"the {count(nodes, 'node')} of its {unit} and their" if nodes > 1 else "its"
    if bounds.most is not None and size > bounds.most:
        wrong = f"above max_world_size, which is {bounds.most}"
    elif size < bounds.least:
        wrong = f"below min_world_size, which is {bounds.least}"
    else:
        wrong = f"not a multiple of {bounds.multiple}"
    text = f"with {whose} {count(slots, 'slot')} the world size would be {size}, {wrong}"
    return reason(ReasonCode.WORLD_SIZE, text, nodes=[node_id], world_size=size)


def used_last(group_id: str, node_id: str, failures: int) -> Reason:
    """Others are used before a node whose workers were the cause of so many failures in a row."""
    text = (
        f"its workers caused the last {failures} failures of its rounds, so other nodes are preferred; to change "
        f"that: hetctl undrain {group_id} {node_id}"
    )
    return reason(ReasonCode.USED_LAST, text, nodes=[node_id], failures=failures)


SPARES = frozenset(
    {
        ReasonCode.ON_JOIN_SPARE,
        ReasonCode.OTHERS_SUCCEEDED,
        ReasonCode.WORLD_NOT_LARGER,
        ReasonCode.MAX_NODES,
        ReasonCode.OUT_OF_REACH,
        ReasonCode.WORLD_SIZE,
        ReasonCode.USED_LAST,
    }
)
"""Why a node is kept as a spare."""


def left_out(number: int, node_id: str, why: Reason) -> Reason:
    """A round runs without a node: the reason for that as a whole sentence."""
    if why.code in SPARES:
        text = f"round {number} runs without {node_id}, which is kept as a spare: {why}"
    elif why.code == ReasonCode.JOINS_NEXT_ROUND:
        text = f"round {number} runs, and will restart to include {node_id}"
    elif why.code == ReasonCode.NODE_NOT_READY:
        text = f"round {number} runs without {node_id}, which is not ready: {why}"
    else:
        return why
    return replace(why, message=reason(ReasonCode(why.code), text).message, round=number)


# -- a node is told to stop, or to exit ----------------------------------------------------------------------


def earlier_job(outcome: str) -> Reason:
    """The job that a node was in is over, and another one has begun."""
    return reason(ReasonCode.EARLIER_JOB, f"the job that this node was in {ended(outcome)}", outcome=outcome)


def came_late(group_id: str, outcome: str, by: str = "", at: str = "") -> Reason:
    """A node joined after the job was over; `by` and `at` (ISO 8601, UTC): who cancelled it and when, if known."""
    who = f" by {by}" if by else ""
    when = f" at {at}" if at else ""
    text = (
        f"the last job of group '{group_id}' {ended(outcome)}{who}{when}, before this node joined; to start another: "
        f"hetctl restart {group_id}, or hetctl delete {group_id} if its settings are to differ; or give the agents "
        "another --group"
    )
    return reason(ReasonCode.CAME_LATE, text, outcome=outcome, by=by or None)


def has_left(node_id: str, why: Reason) -> Reason:
    """What a node is told that has left."""
    return reason(ReasonCode.NODE_LEFT, f"{node_id} has left: {why}", nodes=[node_id], why=why.code)


def is_lost(node_id: str, why: Reason) -> Reason:
    """What a node is told that is lost."""
    text = f"the server considers {node_id} lost: {why}"
    return reason(ReasonCode.NODE_LOST, text, nodes=[node_id], why=why.code)


def is_drained(group_id: str, node_id: str) -> Reason:
    """What a node is told that a person took out."""
    text = f"{node_id} was drained; to readmit it: hetctl undrain {group_id} {node_id}"
    return reason(ReasonCode.NODE_DRAINED, text, nodes=[node_id])


def round_over(number: int) -> Reason:
    """What a node is told of a round that it was in, and that is over."""
    return reason(ReasonCode.ROUND_ENDED, f"round {number} is over", round=number)


def round_formed(number: int) -> Reason:
    """What a member of a new round is told."""
    return reason(ReasonCode.ROUND_FORMED, f"round {number} formed", round=number)


def runs_daemon(master: str, program: str) -> Reason:
    """The master of the round has a node run a program."""
    text = f"{master}, the master, has this node run {program}"
    return reason(ReasonCode.DAEMON_STARTED, text, nodes=[master], program=program)


def quarantined(why: str) -> Reason:
    """The server cannot serve a group."""
    return reason(ReasonCode.QUARANTINED, f"hetserver cannot serve it: {clipped(why)}", quote=why)


def ended(outcome: str) -> str:
    """The outcome of a job as a predicate: `succeeded`, `failed`, `was cancelled`."""
    return "was cancelled" if outcome == "cancelled" else outcome
