"""Why something is as it is, or what has happened: a code for programs, a message for people, and fields.

Programs compare codes and read fields; nobody parses a message. `since` and `until` are on the server's clock, and a
reply that has any says what that clock reads: whoever shows a reason subtracts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from hetrdzv.protocol.bounds import Seconds
from hetrdzv.protocol.texts.node_rank_lists import NO_NODES, NodeList, RankList, RankRange
from hetrdzv.protocol.texts.phrasing import clip_text, duration_text, strip_control_characters

MAX_MESSAGE_CHARACTERS = 300
"""The longest message."""

MAX_QUOTE_CHARACTERS = 4_000
"""The longest quote (characters)."""


DataValue = int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why something is as it is, or what has happened.

    Attributes:
        message: one line, harmless to a terminal.
        nodes, more_nodes: the first few that it is about, and how many more.
        ranks: the first few ranges, first and last rank of each.
        since, until: from when, and until when at the latest (seconds on the server's clock).
        quote: what a worker, an agent or a system has said: it is shown, and never searched.
        data: what else programs may want to know, by code (docs/events.md).
        cause: what led to it: the message of an event says that, too.
    """

    code: str
    message: str
    nodes: tuple[str, ...] = ()
    more_nodes: int = 0
    ranks: tuple[RankRange, ...] = ()
    round: int | None = None
    since: Seconds | None = None
    until: Seconds | None = None
    quote: str = ""
    data: Mapping[str, DataValue] = field(default_factory=dict)
    cause: "Reason | None" = None

    def __str__(self) -> str:
        return self.message

    @property
    def who(self) -> NodeList:
        """Which nodes it is about."""
        return NodeList(first=self.nodes, more=self.more_nodes)


class ReasonCode(StrEnum):
    """All codes; docs/events.md says what each of them means, and which data it has.

    A code whose message needs only names and numbers has it here; those of the others are made by functions.
    """

    text: str  # type: ignore[misc]  # mypy takes it for a member

    def __new__(cls, code: str, text: str = "") -> Self:
        """A code, and the template of its message."""
        member = str.__new__(cls, code)
        member._value_, member.text = code, text  # type: ignore[misc]
        return member

    def reason(
        self,
        *node_ids: str,
        nodes: NodeList = NO_NODES,
        group: str = "",
        ready: object = None,
        why: Reason | None = None,
        cause: Reason | None = None,
        **fields: Any,
    ) -> Reason:
        """A reason with this code's message, about these nodes or those of its cause; for `fields` see `reason`."""
        who = NodeList.of(node_ids) if node_ids else nodes or (cause.who if cause is not None else NO_NODES)
        text = self.text.format(nodes=who, group=group, ready=ready, why=why, cause=cause, **fields)
        return make_reason(
            self, text, nodes=who, cause=cause, why=why.code if why is not None else None, **fields
        )

    # a job and its rounds
    GROUP_CREATED = "group_created", "group '{group}' was created"
    JOB_BEGAN = "job_began", "job {job} of group '{group}' started"
    SETTINGS_CHANGED = "settings_changed"
    ROUND_FORMED = "round_formed", "round {round} formed"
    STARTED_UNBOUNDED = (
        "started_unbounded",
        "without --nnodes, the first round takes the nodes that are there",
    )
    ROUND_STARTING = "round_starting", "round {round} is starting: waiting for {nodes} to start workers"
    ROUND_RUNNING = "round_running"
    TRAINING_BEGAN = "training_began", "round {round} trains"
    STOP_ANNOUNCED = (
        "stop_announced",
        "round {round} is about to end ({cause}): its workers have {notice_s:g} s to save",
    )
    READY_TO_STOP = "ready_to_stop", "all nodes are ready to stop, {took_s:.1f} s after they were told"
    NOTICE_EXPIRED = "notice_expired", "not ready to stop within {notice_s:g} s: {nodes}"
    ROUND_ENDED = "round_ended", "round {round} ended: {cause}"
    ROUND_JUDGED = "round_judged", "round {round} ended because {cause}"
    RESTART_SPENT = "restart_spent"
    GROUP_SUCCEEDED = "group_succeeded"
    GROUP_FAILED = "group_failed"
    GROUP_CANCELLED = "group_cancelled", "the job was cancelled by {by}"
    EARLIER_JOB = "earlier_job", "the job that this node was in is over: {outcome}"
    JOINED_TOO_LATE = (
        "joined_too_late",
        (
            "the last job of group '{group}' was over before this node joined ({outcome}); to start another: hetctl "
            "restart {group}, or give the agents another --group"
        ),
    )
    QUARANTINED = "quarantined", "hetserver cannot serve it: {quote}"
    # what ends a round, and a job
    WORKER_FAILED = "worker_failed"
    START_FAILED = "start_failed"
    PARTIALLY_CONNECTED = (
        "partially_connected",
        (
            "only {met} of {world_size} workers connected: the others may have trained alone, unless they connect in "
            "another way than init_process_group with env://"
        ),
    )
    NODE_LOST = "node_lost", "{nodes} lost: {why}"
    NODE_LEFT = "node_left", "{nodes} left: {why}"
    NODE_LEAVING = "node_leaving", "{nodes} is leaving: {why}"
    NODE_DRAINED = "node_drained", "drained"
    NODES_JOINED = "nodes_joined", "{nodes} joined"
    RESTART_REQUESTED = "restart_requested", "a restart was requested"
    MASTER_UNREACHABLE = "master_unreachable", "{nodes} cannot reach the master {master}: {quote}"
    NO_MASTER = "no_master"
    JOIN_TIMEOUT = "join_timeout", "gave up after {timeout_s:g} s: {why}"
    IMPOSSIBLE_WORLD = "impossible_world", "gave up after {timeout_s:g} s: {why}"
    # why a node goes
    LEASE_EXPIRED = "lease_expired", "no heartbeat for {for_s:g} s"
    CONNECTION_LOST = "connection_lost", "its connection was cut"
    AGENT_REPLACED = "agent_replaced", "its agent was restarted"
    AGENT_LEFT = "agent_left", "{quote}"
    AGENT_DIED = "agent_died", "its agent died, and its workers were stopped"
    WORKERS_STOPPED = "workers_stopped", "{nodes} left the round, which {quote}"
    BAD_ADDRESS = (
        "bad_address",
        "{nodes} offers {address}, which no other host can reach: start hetagent with --local-addr or --interface",
    )
    # what else happens to nodes
    NODE_JOINED = "node_joined"
    NODE_RETURNED = "node_returned", "{nodes} is back"
    NODE_NOT_READY = "node_not_ready", "{nodes} is not ready: {quote}"
    NODE_READY = "node_ready", "{nodes} is ready"
    NODE_REFUSED = "node_refused"
    NODE_UNDRAINED = "node_undrained", "{nodes} may join again"
    NODE_USED_LAST = (
        "node_used_last",
        "{nodes} is used last, since its last {failures} rounds failed there: hetctl undrain {group} {nodes} ends that",
    )
    NODE_SUCCEEDED = "node_succeeded", "all workers of {nodes} succeeded"
    DAEMON_STARTED = "daemon_started", "{nodes}, the master, has the others run {program}"
    # hangs
    BEHIND = "behind"
    NO_ANSWER = "no_answer"
    MISMATCH = "mismatch"
    NOTHING_COMPLETES = "nothing_completes"
    STALLED = "stalled"
    PROGRESS_RESUMED = "progress_resumed"
    # what a group waits for
    STOPPING = "stopping", "workers of {nodes} have to stop"
    NO_ALLOWED_MASTER = (
        "no_allowed_master",
        "{ready}, but none that may be master, since master is {master}; waiting for one",
    )
    NO_COMMAND = (
        "no_command",
        "started without a script: {nodes}; give hetagent one, or: hetctl create {group} -- train.py",
    )
    TOO_FEW_NODES = "too_few_nodes"
    TOO_FEW_SLOTS = "too_few_slots"
    RECONNECTING = "reconnecting", "{ready}; lost the connection to {nodes}: waiting to hear from there again"
    RESTART_BACKOFF = (
        "restart_backoff",
        "{ready}; restart {restart} waits, since {quick} came in quick succession",
    )
    LAST_CALL = "last_call", "{ready}; last call for others"
    REPLACEMENT_WAIT = "replacement_wait", "{ready}; waiting for a replacement"
    # why a node is in no round
    JOINS_NEXT_ROUND = "joins_next_round", "the round is going to restart to include it"
    ON_JOIN_SPARE = "on_join_spare", "on_join is spare"
    OTHERS_SUCCEEDED = "others_succeeded", "workers on other nodes have already succeeded"
    WORLD_NOT_LARGER = "world_not_larger", "adding it would not make the world larger"
    MAX_NODES = "max_nodes", "max_nodes is {max_nodes}"
    CANNOT_REACH_MASTER = (
        "cannot_reach_master",
        "it cannot reach the master {master} at {address}: check the firewall, --port-range and --local-addr",
    )
    # warnings
    VERSIONS_DIFFER = "versions_differ"
    NO_LABEL = "no_label", "{setting} needs the label {label}, which is missing on: {nodes}"
    NOT_WATCHED = "not_watched", "{ranks} cannot be watched: {quote}"
    # snapshots
    BEGAN_FROM_SNAPSHOT = "began_from_snapshot"
    SNAPSHOT_NOT_WRITTEN = (
        "snapshot_not_written",
        "{nodes} could not write the snapshot of step {step} of round {of_round} to disk: {quote}",
    )
    SNAPSHOTS_DISABLED = "snapshots_disabled", "no snapshots are taken on {nodes}: {quote}"
    SNAPSHOT_WANTED = "snapshot_wanted", "the next round is to begin from step {step} of round {of_round}"


def make_reason(
    code: ReasonCode,
    message: str,
    *,
    nodes: Iterable[str] | NodeList = NO_NODES,
    ranks: RankList | None = None,
    quote: str = "",
    cause: Reason | None = None,
    round: int | None = None,  # noqa: A002
    since: float | None = None,
    until: float | None = None,
    **data: DataValue | None,
) -> Reason:
    """A reason, its texts and lists no longer than they may be; data without a value are left out."""
    who = nodes if isinstance(nodes, NodeList) else NodeList.of(nodes)
    return Reason(
        code=code,
        message=to_one_line(message),
        nodes=who.first,
        more_nodes=who.more,
        ranks=ranks.ranges if ranks is not None else (),
        round=round,
        since=since,
        until=until,
        quote=clip_text(quote, MAX_QUOTE_CHARACTERS),
        data={name: value for name, value in data.items() if value is not None},
        cause=cause if cause is None or cause.cause is None else replace(cause, cause=None),
    )


def with_message(of: Reason, message: str, **changes: Any) -> Reason:
    """A reason with another message."""
    return replace(of, message=to_one_line(message), **changes)


def full_text(of: Reason, now: float) -> str:
    """Why something is as it is, with what is left of each wait, and with the end of the last round."""
    times = [f"for {duration_text(max(0.0, now - of.since))}"] if of.since is not None else []
    if of.until is not None:
        left = round(max(0.0, of.until - now))
        times.append(f"at most {duration_text(left) if left >= 60 else f'{left} s'} more")
    parts = [of.message, *([", ".join(times)] if times else [])]
    if of.cause is not None and of.cause.round is not None:
        parts.append(f"round {of.cause.round} ended ({of.cause})")
    return "; ".join(parts)


def to_one_line(text: str) -> str:
    """A text on one line, harmless to a terminal, no longer than a message may be."""
    return clip_text(
        text if text.isprintable() else " ".join(strip_control_characters(text).split()),
        MAX_MESSAGE_CHARACTERS,
    )
