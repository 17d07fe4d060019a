"""The texts of events: one function for each kind."""

from collections.abc import Callable, Mapping
from typing import Any

from hetrdzv.protocol.facts import events
from hetrdzv.protocol.facts.causes import FailedWorker, ShownCause, WorkerFault
from hetrdzv.protocol.facts.events import Event
from hetrdzv.protocol.facts.parts import Other
from hetrdzv.protocol.settings import UNLIMITED_RESTARTS
from hetrdzv.protocol.texts.phrasing import count, names, one_or_more, placed
from hetrdzv.words import causes, snapshots
from hetrdzv.words.clauses import never_met, refused, standing

LONGEST = 2_000
"""How long the text of an event may be (characters)."""


def event_text(event: Event) -> str:
    """What happened, in a line."""
    text = _TEXTS[type(event.facts)](event.facts, event)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def spent_of(restarts: int, budget: int) -> str:
    """How many restarts were spent: `1 of 3`, or `1` where there is no limit to speak of."""
    return str(restarts) if budget >= UNLIMITED_RESTARTS else f"{restarts} of {budget}"


# -- a job from its beginning to its end ---------------------------------------------------------------------


def _group_created(facts: events.GroupCreated, event: Event) -> str:
    return f"group '{facts.group_id}' was created"


def _job_began(facts: events.JobBegan, event: Event) -> str:
    return f"job {facts.job} of group '{facts.group_id}' started"


def _settings_changed(facts: events.SettingsChanged, event: Event) -> str:
    changes = ", ".join(f"{change.name} {change.group} -> {change.given}" for change in facts.changes)
    return f"{event.node_id or 'a person'} changed the settings, since no other node was left: {changes}"


def _round_formed(facts: events.RoundFormed, event: Event) -> str:
    places = ", ".join(f"{place.node_id} {placed(place)}" for place in facts.places)
    more = f" and {count(facts.more, 'more node')}" if facts.more else ""
    return f"round {event.round} formed: world size {facts.world_size}, {places}{more}"


def _started_unbounded(facts: events.StartedUnbounded, event: Event) -> str:
    later = "restart the job" if facts.restarts else "are kept as spares"
    nodes = count(facts.nodes, "node")
    return f"started with {nodes}, since no --nnodes was given; nodes that join later {later}"


def _round_running(facts: events.RoundRunning, event: Event) -> str:
    return f"round {event.round} runs on {count(facts.nodes, 'node')}, world size {facts.world_size}"


def _training_began(facts: events.TrainingBegan, event: Event) -> str:
    return f"round {event.round} trains"


def _round_ended(facts: events.RoundEnded, event: Event) -> str:
    return f"round {event.round} ended: {_after_failure(facts.cause)}"


def _after_failure(cause: ShownCause) -> str:
    """What ended a round; of a failure, of which an event has told what it said, only whose it was."""
    if isinstance(cause, FailedWorker) and cause.hang is None:
        return causes.failed_briefly(cause)
    return causes.ending(cause)


def _round_judged(facts: events.RoundJudged, event: Event) -> str:
    return f"round {event.round} ended because {causes.ending(facts.cause, consequences=True)}"


def _restart_spent(facts: events.RestartSpent, event: Event) -> str:
    return f"restart {spent_of(facts.restarts, facts.budget)}: {causes.failed_briefly(facts.worker)}"


def _group_succeeded(facts: events.GroupSucceeded, event: Event) -> str:
    apart = f", but {never_met(facts.apart)}" if facts.apart is not None else ""
    return f"the job succeeded in round {event.round}{apart}"


def _group_failed(facts: events.GroupFailed, event: Event) -> str:
    text = f"the job failed: {causes.failed_because(facts.reason, briefly=True)}"
    if isinstance(facts.reason, WorkerFault) and facts.reason.budget == 0:
        text += "; max_restarts is 0"
    if facts.gave_up is not None and facts.left is not None:
        few = f"{standing(facts.left)} {one_or_more(facts.left.nodes, 'is', 'are')} left"
        text += f"; {names(facts.gave_up)} gave up, and {few}"
    return text


def _group_cancelled(facts: events.GroupCancelled, event: Event) -> str:
    return causes.cancelled(facts.by, facts.hang)


# -- nodes ---------------------------------------------------------------------------------------------------


def _node_joined(facts: events.NodeJoined, event: Event) -> str:
    text = f"{event.node_id} joined with {count(facts.slots, 'slot')} at {facts.address}"
    return f"{text}, not ready yet: {facts.not_ready}" if facts.not_ready else text


def _node_returned(facts: events.NodeReturned, event: Event) -> str:
    return f"{event.node_id} is back"


def _node_not_ready(facts: events.NodeNotReady, event: Event) -> str:
    return f"{event.node_id} is not ready: {facts.why}"


def _node_ready(facts: events.NodeReady, event: Event) -> str:
    return f"{event.node_id} is ready"


def _node_refused(facts: events.NodeRefused, event: Event) -> str:
    return refused(event.node_id, facts.differences)


def _node_rejected(facts: events.NodeRejected, event: Event) -> str:
    return causes.going(facts.why)


def _node_left_out(facts: events.NodeLeftOut, event: Event) -> str:
    return f"{event.node_id} is left out: it cannot reach {facts.master}, and no node can be reached by all"


def _node_leaving(facts: events.NodeLeaving, event: Event) -> str:
    return f"{event.node_id} is leaving: {causes.going(facts.why, left=False)}"


def _node_left(facts: events.NodeLeft, event: Event) -> str:
    return f"{event.node_id} left: {causes.going(facts.why)}"


def _node_lost(facts: events.NodeLost, event: Event) -> str:
    return f"{event.node_id} lost: {causes.going(facts.why)}"


def _node_drained(facts: events.NodeDrained, event: Event) -> str:
    return f"{event.node_id} was drained"


def _node_undrained(facts: events.NodeUndrained, event: Event) -> str:
    return f"{event.node_id} may join again"


def _node_used_last(facts: events.NodeUsedLast, event: Event) -> str:
    return f"workers on {event.node_id} caused the last {facts.failures} failures: other nodes are preferred to it"


def _node_succeeded(facts: events.NodeSucceeded, event: Event) -> str:
    return f"all workers of {event.node_id} succeeded"


# -- workers -------------------------------------------------------------------------------------------------


def _worker_failed(facts: events.WorkerFailed, event: Event) -> str:
    return causes.failed_worker(facts.worker)


def _never_met(facts: events.NeverMet, event: Event) -> str:
    return never_met(facts.apart)


def _stalled(facts: events.Stalled, event: Event) -> str:
    return f"round {event.round} hangs: {facts.hang.message(facts.hang.for_s)}"


def _goes_on(facts: events.GoesOn, event: Event) -> str:
    return f"round {event.round} goes on, after {facts.hang.message(facts.hang.for_s)}"


def _daemon_started(facts: events.DaemonStarted, event: Event) -> str:
    return f"{event.node_id}, the master, has the others run {facts.program}"


# -- planned stops -------------------------------------------------------------------------------------------


def _stop_announced(facts: events.StopAnnounced, event: Event) -> str:
    left = f"its workers have {facts.notice_s:g} s to save"
    return f"round {event.round} is about to end ({causes.ending(facts.cause)}): {left}"


def _ready_to_stop(facts: events.ReadyToStop, event: Event) -> str:
    return f"all nodes are ready to stop, {facts.took_s:.1f} s after they were told"


def _notice_expired(facts: events.NoticeExpired, event: Event) -> str:
    were = one_or_more(facts.late, "was", "were")
    return f"{names(facts.late)} {were} not ready to stop within {facts.notice_s:g} s"


def _other(facts: Other, event: Event) -> str:
    return causes.unknown(facts)


_TEXTS: Mapping[type, Callable[[Any, Event], str]] = {
    events.GroupCreated: _group_created,
    events.JobBegan: _job_began,
    events.SettingsChanged: _settings_changed,
    events.RoundFormed: _round_formed,
    events.StartedUnbounded: _started_unbounded,
    events.RoundRunning: _round_running,
    events.TrainingBegan: _training_began,
    events.RoundEnded: _round_ended,
    events.RoundJudged: _round_judged,
    events.RestartSpent: _restart_spent,
    events.GroupSucceeded: _group_succeeded,
    events.GroupFailed: _group_failed,
    events.GroupCancelled: _group_cancelled,
    events.NodeJoined: _node_joined,
    events.NodeReturned: _node_returned,
    events.NodeNotReady: _node_not_ready,
    events.NodeReady: _node_ready,
    events.NodeRefused: _node_refused,
    events.NodeRejected: _node_rejected,
    events.NodeLeftOut: _node_left_out,
    events.NodeLeaving: _node_leaving,
    events.NodeLeft: _node_left,
    events.NodeLost: _node_lost,
    events.NodeDrained: _node_drained,
    events.NodeUndrained: _node_undrained,
    events.NodeUsedLast: _node_used_last,
    events.NodeSucceeded: _node_succeeded,
    events.WorkerFailed: _worker_failed,
    events.NeverMet: _never_met,
    events.Stalled: _stalled,
    events.GoesOn: _goes_on,
    events.DaemonStarted: _daemon_started,
    events.StopAnnounced: _stop_announced,
    events.ReadyToStop: _ready_to_stop,
    events.NoticeExpired: _notice_expired,
    Other: _other,
    **snapshots.EVENTS,
}
