"""Why a group stands where it stands, and why a node waits, in one sentence each."""

from dataclasses import fields, is_dataclass

from hetrdzv.protocol.facts import parts, reasons
from hetrdzv.protocol.facts.parts import WorldBounds
from hetrdzv.protocol.facts.reasons import GroupReason, LeftOutReason, Reason, WaitsFor
from hetrdzv.protocol.texts.phrasing import count, names, one_or_more
from hetrdzv.protocol.texts.times import Clock, ago
from hetrdzv.protocol.texts.who import Nodes
from hetrdzv.words import causes
from hetrdzv.words.clauses import (
    also_not_ready,
    may_not_be_master,
    never_met,
    no_master,
    no_world,
    standing,
)


def why(reason: Reason, clock: Clock) -> str:
    """The sentence for a reason; empty for one of a newer server, which sends its own."""
    match reason:
        case reasons.LeftOut():
            return _left_out(reason, clock)
        case reasons.NoCommand(group_id=group, nodes=nodes):
            who = names(nodes)
            create = f"give hetagent one, or: {_create(group)}"
            return f"{who} was started without a script, and group '{group}' has no command yet: {create}"
        case reasons.Rejected(why=going):
            return causes.going(going)
        case reasons.Ended():
            return ended_by(reason)
        case reasons.EarlierJob(outcome=outcome):
            return f"the job that this node was in {ended(outcome)}"
        case reasons.CameLate():
            return came_late(reason, reason.at)
        case reasons.Gone(kind="left", node_id=node, why=going):
            return f"{node} has left: {causes.going(going)}"
        case reasons.Gone(node_id=node, why=going):
            return f"the server considers {node} lost: {causes.going(going)}"
        case reasons.Drained(group_id=group, node_id=node):
            return f"{node} was drained; to readmit it: {_undrain(group, node)}"
        case reasons.Formed(kind=kind, round=number):
            return f"round {number} {'is over' if kind == 'over' else 'formed'}"
        case reasons.RunsDaemon(master=master, program=program):
            return f"{master}, the master, has this node run {program}"
        case parts.Other():
            return ""
    return _of_group(reason, clock)


def told(reason: Reason | None, text: str, clock: Clock) -> str:
    """The sentence for a reason, of which a server has sent its own, too: that is told where any part is unknown."""
    known = why(reason, clock) if reason is not None and _is_known(reason) else ""
    return known or text


def time_left(reason: Reason | None, clock: Clock) -> str:
    """How long a node waits at most, as the sentence has it: `35 s`; empty: there is no end."""
    match reason:
        case reasons.Waits(what=part) | reasons.LeftOut(why=part):
            until = getattr(part, "until", None)
            return "" if until is None else clock.left(until)
    return ""


def _is_known(value: object) -> bool:
    """Whether all of a value is known, and not only to newer servers."""
    if isinstance(value, tuple):
        return all(map(_is_known, value))
    if not is_dataclass(value) or isinstance(value, type):
        return True
    return not isinstance(value, parts.Other) and all(
        _is_known(getattr(value, field.name)) for field in fields(value)
    )


def came_late(reason: reasons.CameLate, at: str) -> str:
    """What a node hears that joined after the end of the job.

    Args:
        at: when it was cancelled, as it is to be shown; empty: nobody knows.
    """
    name = reason.group_id
    by = f" by {reason.by}" if reason.by else ""
    when = f" at {at}" if at else ""
    return (
        f"the last job of group '{name}' {ended(reason.outcome)}{by}{when}, before this node joined; to start another: "
        f"hetctl restart {name}, or hetctl delete {name} if its settings are to differ; or give the agents another "
        "--group"
    )


def ended(outcome: str) -> str:
    """The outcome of a job as a predicate: `succeeded`, `failed`, `was cancelled`."""
    return "was cancelled" if outcome == "cancelled" else outcome


# -- a group -------------------------------------------------------------------------------------------------


def _of_group(reason: GroupReason, clock: Clock) -> str:
    match reason:
        case reasons.Succeeded(apart=apart):
            return "the job succeeded" + (f", but {never_met(apart)}" if apart is not None else "")
        case reasons.Cancelled(by=by, hang=hang):
            return causes.cancelled(by, hang)
        case reasons.Failed(cause=cause):
            return causes.failed_because(cause) if cause is not None else "the job failed: unknown cause"
        case reasons.Starting(round=number, nodes=nodes):
            return f"round {number} is starting: waiting for {names(nodes)} to start {_its(nodes)} workers"
        case reasons.AboutToEnd(round=number, cause=cause, nodes=nodes, until=until):
            save = f"waiting for {names(nodes)} to save and be ready to stop ({clock.at_most(until)})"
            return f"round {number} is about to end ({causes.ending(cause)}); {save}"
        case reasons.Runs(round=number, nodes=nodes, world_size=world, apart=apart):
            so_far = f"; so far {never_met(apart)}" if apart is not None else ""
            return f"round {number} runs on {count(nodes, 'node')}, world size {world}{so_far}"
        case reasons.Stalls(round=number):
            return f"round {number}: {_stalls(reason, clock)}"
        case reasons.Waits(ended=last, what=what, not_ready=not_ready):
            before = f"; round {last.round} ended ({ended_by(last)})" if last is not None else ""
            return f"{_waits_for(what, clock)}{also_not_ready(not_ready)}{before}"


def ended_by(last: reasons.Ended) -> str:
    """What ended a round, in one sentence."""
    return causes.ending(last.cause, consequences=last.consequences)


def _stalls(reason: reasons.Stalls, clock: Clock) -> str:
    text = reason.hang.message(clock.now - reason.since)
    if not reason.known:
        return f"{text}; whether they still wait is no longer known"
    return (
        text if reason.ends_at is None else f"{text}; the round ends for it in {clock.left(reason.ends_at)}"
    )


def _waits_for(what: WaitsFor, clock: Clock) -> str:
    match what:
        case reasons.ToStop(nodes=nodes, checked=checked, until=until):
            have = one_or_more(nodes, "has", "have")
            check = " and be ready again" if checked else ""
            limit = "" if until is None else f" ({clock.at_most(until)})"
            return f"{names(nodes)} {have} to stop {_its(nodes)} workers{check}{limit}"
        case reasons.NoCommand(group_id=group, nodes=nodes):
            return f"{names(nodes)} {one_or_more(nodes, 'waits', 'wait')} for a command: {_create(group)}"
    have = _have(what.ready)
    if isinstance(what, reasons.TooFew) and what.since is not None:
        have = f"no node is here: the last one went {ago(max(0.0, clock.now - what.since))}"
    match what:
        case reasons.ToHear(nodes=nodes):
            them = one_or_more(nodes, "it", "them")
            return f"{have}; lost the connection to {names(nodes)}, waiting to hear from {them} again"
        case reasons.Resting(restart=restart, of=of, quick=quick, until=until):
            which, wait = spent(restart, of), clock.left(until)
            return f"{have}; restart {which} waits {wait} more, since {quick} came in quick succession"
        case reasons.LastCall():
            return f"{have}; {_last_call(what, clock)}"
    return f"{have}{_lacks(what)}" + (f" ({clock.at_most(what.until)})" if what.until is not None else "")


def _lacks(
    what: reasons.MayNotBeMaster | reasons.TooFew | reasons.Unreachable,
) -> str:
    """What is missing beside those that are ready."""
    match what:
        case reasons.MayNotBeMaster(ready=ready, rule=rule):
            return f", but {may_not_be_master(ready.nodes, rule)}; waiting for one that may"
        case reasons.TooFew(world=None, missing=missing, in_place_of=gone):
            return f"; waiting for {missing} more{_in_place_of(gone)}"
        case reasons.TooFew(world=world, missing=missing, in_place_of=gone):
            more = count(missing, "more slot") if missing else "others"
            lack = f"; {no_world(world)}" if world is not None else ""
            return f"{lack}: waiting for {more}{_in_place_of(gone)}"
        case reasons.Unreachable(no_master=none, in_place_of=gone):
            return f", but none can be master ({no_master(none)}); waiting for more{_in_place_of(gone)}"


def _last_call(reason: reasons.LastCall, clock: Clock) -> str:
    what = "waiting for a replacement" if reason.replacement else "last call"
    most = f", or as soon as {reason.or_nodes} are ready" if reason.or_nodes is not None else ""
    if reason.or_slots is not None:
        most += f", or as soon as nodes with {count(reason.or_slots, 'slot')} are"
    return f"{what}: {clock.starts(reason.until)}{most}"


def _have(ready: parts.Ready) -> str:
    return f"{standing(ready)} ready ({names(ready.nodes)})" if ready.nodes else "no node is ready"


def spent(restarts: int, budget: int | None) -> str:
    """How many restarts were spent: `1 of 3`, or `1` where there is no limit."""
    return str(restarts) if budget is None else f"{restarts} of {budget}"


def _in_place_of(gone: Nodes | None) -> str:
    return f" in place of {names(gone)}" if gone else ""


def _its(nodes: Nodes) -> str:
    return one_or_more(nodes, "its", "their")


def _create(group_id: str) -> str:
    return f"hetctl create {group_id} -- train.py"


def _undrain(group_id: str, node_id: str) -> str:
    return f"hetctl undrain {group_id} {node_id}"


# -- a node that is in no round --------------------------------------------------------------------------------


def _left_out(reason: reasons.LeftOut, clock: Clock) -> str:
    without = f"round {reason.round} runs without {reason.node_id}, which"
    match reason.why:
        case reasons.Joins(until=until):
            joins = f"will restart to include {reason.node_id} ({clock.at_most(until)})"
            return f"round {reason.round} runs, and {joins}"
        case parts.NotReady(why=text):
            return f"{without} is not ready: {text}"
        case reasons.Misfit():
            return f"{without} is kept as a spare: {left_out(reason.why, clock)}"
    clause = left_out(reason.why, clock)
    return f"{without} is kept as a spare" + (f" ({clause})" if clause else "")


def left_out(reason: LeftOutReason, clock: Clock, *, gone: bool = True) -> str:
    """Why a node is in no round, in a clause without its name: `max_nodes is 3`; empty: nothing is to be said.

    Args:
        gone: False: it is only about to go.
    """
    match reason:
        case reasons.NoCommand():
            return "it was started without a script, and the group has no command yet"
        case parts.NotReady(why=text):
            return f"it is not ready: {text}"
        case reasons.Joins():
            return "the round is going to restart to include it"
        case reasons.Spare(kind=kind):
            return _SPARE[kind]
        case reasons.Full(max_nodes=most):
            return f"max_nodes is {most}"
        case reasons.OutOfReach(master=master, address=address, loopback=True):
            return (
                f"{master}, the master, offers address {address}, which no other host can reach: start hetagent there "
                "with --local-addr or --interface"
            )
        case reasons.OutOfReach(master=master, address=address):
            return (
                f"it could not reach {master} at {address}: check the firewall, --port-range and --interface, then "
                "restart its agent"
            )
        case reasons.Misfit():
            return misfit(reason)
        case reasons.UsedLast(failures=number):
            lift = _undrain(reason.group_id, reason.node_id)
            return (
                f"its workers caused the last {number} failures of its rounds, so other nodes are preferred; "
                f"to change that: {lift}"
            )
        case _:
            return causes.going(reason, left=gone)


_SPARE = {
    "on_join": "on_join is spare",
    "others_succeeded": "workers on other nodes have already succeeded",
    "not_larger": "",
}


def misfit(reason: reasons.Misfit) -> str:
    """Why a node does not fit: `with its 3 slots the world size would be 11, not a multiple of 2`."""
    whose = "its"
    if reason.nodes > 1:
        whose = f"the {count(reason.nodes, 'node')} of its {reason.unit} and their"
    slots = f"{whose} {count(reason.slots, 'slot')}"
    return f"with {slots} the world size would be {reason.world_size}, {_excluded(reason.bounds, reason.world_size)}"


def _excluded(bounds: WorldBounds, size: int) -> str:
    """Why a world cannot have this size."""
    if bounds.most is not None and size > bounds.most:
        return f"above max_world_size, which is {bounds.most}"
    if size < bounds.least:
        return f"below min_world_size, which is {bounds.least}"
    return f"not a multiple of {bounds.multiple}"
