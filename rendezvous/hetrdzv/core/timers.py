"""Until when a group waits: leases, stops, last calls, time-outs, and the moment a `Tick` is due."""

from collections.abc import Iterator
from math import inf

from hetrdzv.core.model import End, Group, Node
from hetrdzv.core.selection import Growth, Selection, Shortfall, growth, next_round

SUSPECT_GRACE_S = 1.0
"""How long a node whose poll was cut may take to be heard again (seconds)."""

STOP_GRACE_S = 5.0
"""How long past `stop_timeout_s` a member may take to say that its workers are gone (seconds)."""


def expired(group: Group, now: float) -> list[tuple[Node, str]]:
    """Live nodes that are lost by now, and why: at the end of its lease a node still lives, past it it does not."""
    lease_s = group.lease_s
    gone = []
    for node in group.nodes.values():
        if node.gone_at is not None:
            continue
        if node.cut_at is not None and now > node.cut_at + SUSPECT_GRACE_S:
            gone.append((node, "its connection was cut"))
        elif now > node.heard_at + lease_s:
            gone.append((node, f"no heartbeat for {lease_s:g} s"))
    return gone


# -- an ended round ------------------------------------------------------------------------------------------


def unresolved(group: Group, now: float) -> list[Node]:
    """Members of an ended round that may still have workers, or may turn out to be lost."""
    return [node for node in _open(group) if now < overdue_at(group, node)]


def _open(group: Group) -> list[Node]:
    """Members of an ended round that have not stopped, or are suspects."""
    ended = group.round
    if ended is None or ended.end is None:
        return []
    return [
        node
        for member in ended.members
        if (node := group.speaker(member)) is not None
        and not node.gone
        and (node.cut_at is not None or node.acked_round < ended.number)
    ]


def overdue_at(group: Group, node: Node) -> float:
    """Past when a member of an ended round is not waited for any more (seconds).

    One that was not told to stop yet has no such moment: its workers may run until its lease ends (rule 8).
    """
    if node.stop_told_at is None:
        return inf
    return node.stop_told_at + group.spec.stop_timeout_s + STOP_GRACE_S


def resolved_at(group: Group, end: End) -> float:
    """When all members of an ended round will have stopped, be lost or be overdue, as far as is known (seconds)."""
    told_all = end.at + group.spec.stop_timeout_s + STOP_GRACE_S
    silent = (node.heard_at + group.lease_s for node in _open(group) if node.stop_told_at is None)
    told = (at for node in _open(group) if (at := overdue_at(group, node)) < inf)
    return max([told_all, *silent, *told])


# -- the next round ------------------------------------------------------------------------------------------


def forms_at(group: Group, answer: Selection | Shortfall) -> float:
    """When the round forms, or the group gives up on it, if nothing else happens (seconds); the bounds hold."""
    since = group.bounds_since or 0.0
    if answer.full:
        return since
    if group.last_call:
        return since + group.spec.last_call_s
    ended = group.round
    if answer.smaller and ended is not None and ended.end is not None:
        return max(since, ended.end.at + group.spec.replace_wait_s)
    return since


def gives_up_at(group: Group) -> float | None:
    """When the group fails for want of nodes, or None while it waits for nobody (seconds)."""
    if group.waiting_since is None or group.bounds_since is not None:
        return None
    return group.waiting_since + group.spec.join_timeout_s


def admits_at(group: Group, larger: Growth) -> float:
    """When a running round ends for its joiners if nothing else happens (seconds)."""
    since = group.joiners_since or 0.0
    return since if larger.full else since + group.spec.last_call_s


# -- all of them ---------------------------------------------------------------------------------------------


def deadline(group: Group) -> float | None:
    """The moment past which a `Tick` changes the group, or None (seconds on the server's clock).

    Before it nothing happens by itself. A `Tick` at any later moment changes the group.
    """
    return min(_timers(group), default=None)


def _timers(group: Group) -> Iterator[float]:
    lease_s = group.lease_s
    for node in group.nodes.values():
        if node.gone_at is None:
            yield node.heard_at + lease_s
            if node.cut_at is not None:
                yield node.cut_at + SUSPECT_GRACE_S
    if group.state.terminal:
        return
    if group.active_round is not None:
        yield from _joiners_timer(group)
        return
    if group.round is not None and group.round.end is not None and not group.round.end.judged:
        judged_at = max((overdue_at(group, node) for node in _open(group)), default=group.round.end.at)
        if judged_at < inf:  # else it is a lease that comes next
            yield judged_at
        return
    if group.bounds_since is not None:
        answer = next_round(group)
        if not answer.suspects:
            yield forms_at(group, answer)
    give_up_at = gives_up_at(group)
    if give_up_at is not None:
        yield give_up_at


def _joiners_timer(group: Group) -> Iterator[float]:
    if group.joiners_since is not None:
        larger = growth(group)
        if not larger.has_suspects:
            yield admits_at(group, larger)
