"""Requests and replies of the HTTP API, for the server and its clients.

Names are those of the core. Times are in seconds; names of durations end in `_s`.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    Strict,
    StringConstraints,
    ValidationInfo,
    create_model,
    field_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from hetrdzv import __version__
from hetrdzv.protocol import codec as codec  # reads and writes unions
from hetrdzv.protocol import versions
from hetrdzv.protocol.bounds import (
    MAX_ALL_LANES,
    MAX_KIND,
    MAX_KNOWN_S,
    MAX_LABEL_CHARACTERS,
    MAX_LABELS,
    MAX_LANES,
    MAX_NOT_READY,
    MAX_NUMBER,
    MAX_PLANNED,
    MAX_SECONDS,
    MAX_WEIGHT,
    MIN_WEIGHT,
)
from hetrdzv.protocol.causes import FailedBecause
from hetrdzv.protocol.daemon import MAX_CHARACTERS, MAX_WORDS
from hetrdzv.protocol.events import Facts
from hetrdzv.protocol.ids import ID_PATTERN, MAX_ID_LENGTH
from hetrdzv.protocol.parts import Other
from hetrdzv.protocol.reasons import LeftOutReason, Reason
from hetrdzv.protocol.settings import MAX_SLOTS, MAX_WORLD_SIZE, SETTINGS, Setting
from hetrdzv.protocol.stalls import StallFacts
from hetrdzv.protocol.states import DirectiveKind, GroupState, ReportKind
from hetrdzv.protocol.warnings import AnyWarning

Id = Annotated[str, StringConstraints(pattern=ID_PATTERN, max_length=MAX_ID_LENGTH)]
Text = Annotated[str, StringConstraints(max_length=16_384)]
Word = Annotated[str, StringConstraints(max_length=MAX_CHARACTERS)]
ShortText = Annotated[str, StringConstraints(max_length=256)]
Whole = Annotated[int, Strict(), Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
"""A JSON integer; not a string or a boolean."""
Count = Annotated[Whole, Field(ge=0)]
Positive = Annotated[Whole, Field(ge=1)]
Slots = Annotated[Whole, Field(ge=1, le=MAX_SLOTS)]
Workers = Annotated[Whole, Field(ge=0, le=MAX_WORLD_SIZE)]
"""How many workers."""
Rank = Annotated[Whole, Field(ge=0, lt=MAX_WORLD_SIZE)]
ExitCode = Annotated[Whole, Field(ge=-(2**31), lt=2**32)]
"""Unix has 0 to 255, Windows 32 bits."""
Seconds = Annotated[float, Strict(), Field(ge=-MAX_SECONDS, le=MAX_SECONDS)]
Duration = Annotated[float, Strict(), Field(ge=0, le=MAX_SECONDS)]
Fraction = Annotated[float, Strict(), Field(ge=0, le=1)]
Weight = Annotated[float, Strict(), Field(ge=MIN_WEIGHT, le=MAX_WEIGHT)]
Speed = Annotated[float, Strict(), Field(ge=1e-12, le=1e24)]
"""In any unit, since only the ratios of speeds matter."""
Flag = Annotated[bool, Strict()]
Port = Annotated[Whole, Field(ge=1, le=65_535)]


def _no_longer(value: object) -> object:
    """What is to be a dict, before its items are looked at: pydantic counts them only after all are."""
    if isinstance(value, dict) and len(value) > MAX_LABELS:
        text = "Dictionary should have at most {most} items, not {given}"
        raise PydanticCustomError("too_long", text, {"most": MAX_LABELS, "given": len(value)})
    return value


def _not_much(labels: dict[str, str]) -> dict[str, str]:
    if (given := sum(len(name) + len(value) for name, value in labels.items())) > MAX_LABEL_CHARACTERS:
        text = "It should have at most {most} characters in all, not {given}"
        raise PydanticCustomError("too_long", text, {"most": MAX_LABEL_CHARACTERS, "given": given})
    return labels


Labels = Annotated[
    dict[ShortText, ShortText],
    Field(max_length=MAX_LABELS),
    AfterValidator(_not_much),
    BeforeValidator(_no_longer),
]

_T = TypeVar("_T")

Shown = Annotated[_T | SkipJsonSchema[str], Field(union_mode="left_to_right")]
"""A value that clients only show. One that this version does not know, from a newer server, stays a string."""


def _report_kind(value: object) -> ReportKind | str:
    if not isinstance(value, str) or len(value) > MAX_KIND:
        raise PydanticCustomError(
            "string_type", f"Input should be a valid string of at most {MAX_KIND} characters"
        )
    try:
        return ReportKind(value)
    except ValueError:
        return value


AnyReportKind = Annotated[
    ReportKind | str,
    Field(max_length=MAX_KIND),
    PlainValidator(_report_kind, json_schema_input_type=ReportKind),
]
"""A kind that this version does not know stays a string; the route decides what to do with it."""


class Wire(BaseModel):
    """Base of requests: unknown fields are refused by name (but see api/reading.py)."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Reply(BaseModel):
    """Base of replies, made from values of the core; fields that a newer server has added are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, from_attributes=True)


def _with_ranges(schema: dict[str, Any]) -> None:
    """Add to the JSON schema of `SpecFields` what the core checks: ranges, and which fields cannot be null."""
    fields = schema["properties"]
    for name, setting in SETTINGS.items():
        if setting.least is not None:
            one = fields[name]["anyOf"][0]
            one.get("items", one).update({"minimum": setting.least, "maximum": setting.most})
        if not setting.optional:
            fields[name] |= fields[name].pop("anyOf")[0]
    fields["command"]["anyOf"][0]["minItems"] = 1


MAX_COMMAND = 131_072
"""How many characters a group's command may have in all; one word of a program's arguments may have so many bytes."""


def _no_long_command(words: list[str]) -> list[str]:
    if sum(map(len, words)) > MAX_COMMAND:
        text = "A command should have at most {most} characters in all"
        raise PydanticCustomError("too_long", text, {"most": MAX_COMMAND})
    return words


_JSON_TYPES: dict[type, Any] = {
    int: Whole,
    float: Seconds,
    str: Text,
    tuple: Annotated[list[Text], Field(max_length=1024, fail_fast=True), AfterValidator(_no_long_command)],
}
_NUMBERS: Any = Annotated[tuple[Whole, ...], Field(max_length=255, fail_fast=True)]


def _json_type(setting: Setting) -> Any:
    if setting.kind is tuple and setting.least is not None:
        return _NUMBERS
    return _JSON_TYPES.get(setting.kind, setting.kind)


_SPEC_FIELDS: dict[str, Any] = {
    name: (_json_type(setting) | None, None) for name, setting in SETTINGS.items()
}


class SpecFields(create_model("SpecFields", __base__=Wire, **_SPEC_FIELDS)):  # type: ignore[misc]
    """Settings of a group (protocol/settings.py). A field that is not given is not compared."""

    model_config = ConfigDict(json_schema_extra=_with_ranges)

    def given(self) -> dict[str, Any]:
        """The fields that were given, by name."""
        return {name: getattr(self, name) for name in sorted(self.model_fields_set)}


class JoinRequest(Wire):
    """`PUT /v1/groups/{g}/nodes/{n}`: join, or declare the node ready for the next round.

    Attributes:
        takes_notice: the node tells its workers that their round is about to end, and reports `ready_to_stop`.
        weight: how fast each slot is, compared with those of other nodes: with `rank_order` `speed` the largest comes
            first. If any node of a round was given one, shares go by it.
        speeds: how fast each slot was measured to be, in the order of local ranks; None: they were not measured.
        ready_within_s: how long the node may take from the end of its workers until it is ready, since its agent checks
            it first (seconds); the others wait that much longer for it.
        not_ready: why the node takes part in no round yet, though its workers are gone; empty: it is ready.
    """

    incarnation: Id
    slots: Slots
    address: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    port: Port
    script_port: Annotated[Whole, Field(ge=0, le=65_535)] = 0
    after_round: Count = 0
    role: Id = "default"
    weight: Weight = 1.0
    speeds: Annotated[list[Speed], Field(max_length=MAX_SLOTS, fail_fast=True)] | None = None
    labels: Labels = {}
    device: Labels = {}
    wants_command: Flag = False
    wants_members: Flag = False
    wants_daemon: Flag = False
    takes_notice: Flag = False
    ready_within_s: Annotated[Duration, Field(le=86_400)] = 0.0
    not_ready: Annotated[str, StringConstraints(max_length=MAX_NOT_READY)] = ""
    spec: SpecFields = SpecFields()

    @field_validator("speeds")
    @classmethod
    def _one_each(cls, speeds: list[float] | None, info: ValidationInfo) -> list[float] | None:
        slots = info.data.get("slots")
        if speeds is not None and slots is not None and len(speeds) != slots:
            text = "there must be one for each of the {slots} slots, not {given}"
            raise PydanticCustomError("speeds", text, {"slots": slots, "given": len(speeds)})
        return speeds


class FailureFields(Wire):
    """How a worker failed; see core/model.py, Failure."""

    local_rank: Annotated[Whole, Field(ge=-1, lt=MAX_SLOTS)]
    rank: Annotated[Whole, Field(ge=-1, lt=MAX_WORLD_SIZE)]
    exit_code: ExitCode | None = None
    signal: ShortText | None = None
    message: Text = ""
    final: Flag = False
    permanent: Flag = False
    collectives: Count | None = None
    step: Whole | None = None


class ReportRequest(Wire):
    """`POST /v1/groups/{g}/nodes/{n}/report`; `age_s` is how long ago the agent saw what it reports (seconds)."""

    incarnation: Id
    round: Count
    kind: AnyReportKind
    age_s: Duration = 0.0
    failure: FailureFields | None = None
    met: Workers | None = None
    must_meet: Flag = False
    message: Text = ""


class CollectivesFields(Wire):
    """How far one worker has come in one of torch's process groups; the ranks that name a group are its members.

    Attributes:
        name: torch's name of the group, the same on all its members.
        size: how many members it has; 0: unknown.
        enqueued, started, completed: the number of the last collective that the worker has asked for, that its device
            has begun, and that is done (0: none). A backend that cannot say what has begun reports 0.
        op: the last one asked for: its operation and the sizes of its input (`all_reduce [[10]]`).
    """

    name: ShortText
    size: Workers
    enqueued: Count = 0
    started: Count = 0
    completed: Count = 0
    op: ShortText = ""


class WorkerFields(Wire):
    """How far one worker has come.

    Attributes:
        rank: its global rank.
        state: `runs`; `stopped` (by a signal), `blocked` (in the kernel, uninterruptibly), `ended`, or `unknown`: it
            runs, but its collectives cannot be known now.
        unseen: why they cannot; empty: they are known.
        sources: which of torch's backends have told of them (`gloo`, `gloo, nccl`).
        idle_s: how long nothing of what follows has changed (seconds).
        still: the worker has not moved for unusually long; its agent says at once when it moves again. A worker that is
            not `still` counts as moving, whatever `idle_s` was when its agent looked.
        cpu: how much of a core its process has taken since it last moved (0 to 1); None: nobody can say.
        waiting: of this round's looks at the worker, the share at which it waited for a collective (0 to 1); None:
            nobody can say.
        busy: of the looks since the newest decision on shares, the share at which it did not wait (0 to 1); None:
            nobody can say.
        looks: how many looks those were.
        long_s: for how long from now the script has announced that nothing need change (seconds).
        step: what the script says itself, with `progress(step)` or in `HET_PROGRESS_FILE`; None: nothing.
        collectives: by process group.
    """

    rank: Rank
    state: ShortText = "runs"
    unseen: ShortText = ""
    sources: ShortText = ""
    idle_s: Duration = 0.0
    still: Flag = False
    cpu: Fraction | None = None
    waiting: Fraction | None = None
    busy: Fraction | None = None
    looks: Count = 0
    long_s: Duration = 0.0
    step: Whole | None = None
    collectives: Annotated[list[CollectivesFields], Field(max_length=MAX_LANES, fail_fast=True)] = []


class ProgressFields(Wire):
    """How far the workers of a node have come in a round, as its agent saw it `age_s` seconds ago.

    Attributes:
        decision: the newest decision on shares that they know: since then `busy` and `looks` count.
        known_s: for how long after that look it holds (seconds), since the agent says at once when anything of it
            changes; after that, and until the next poll, nothing is known.
    """

    round: Positive
    decision: Count = 0
    age_s: Duration = 0.0
    known_s: Annotated[Duration, Field(le=MAX_KNOWN_S)] = 60.0
    workers: Annotated[list[WorkerFields], Field(max_length=MAX_SLOTS, fail_fast=True)]

    @field_validator("workers")
    @classmethod
    def _few_lanes(cls, workers: list[WorkerFields]) -> list[WorkerFields]:
        if (given := sum(len(one.collectives) for one in workers)) > MAX_ALL_LANES:
            text = "its workers should have at most {most} process groups in all, not {given}"
            raise PydanticCustomError("too_long", text, {"most": MAX_ALL_LANES, "given": given})
        return workers


class PollRequest(Wire):
    """`POST /v1/groups/{g}/nodes/{n}/directive`: a poll that also says how far the node's workers have come.

    Attributes:
        after, wait_s: as the parameters `after` and `wait` of the `GET`.
    """

    incarnation: Id
    after: ShortText | None = None
    wait_s: Annotated[Duration, Field(le=3600)] = 0.0
    progress: ProgressFields | None = None


class StackFields(Wire):
    """The Python stack of a worker's threads; without `text`, `why` there is none."""

    rank: Rank
    text: Text = ""
    why: ShortText = ""


class StacksRequest(Wire):
    """`POST /v1/groups/{g}/nodes/{n}/stacks`: an agent's answer to what `StacksAsked` or `LogsAsked` asks."""

    incarnation: Id
    number: Whole
    stacks: Annotated[list[StackFields], Field(max_length=MAX_SLOTS, fail_fast=True)]


class SharesRequest(Wire):
    """`POST /v1/groups/{g}/nodes/{n}/shares`: the node's workers ask for a decision on the shares of their round.

    Attributes:
        number: of the decision, counted from 1 in each round. The first who asks for it brings it about.
    """

    incarnation: Id
    round: Positive
    number: Positive


class DaemonRequest(Wire):
    """`POST /v1/groups/{g}/nodes/{n}/daemon`: what the round's master wants node `n` to run.

    Attributes:
        master, incarnation: the master and its agent.
        words: the program, which is orted, and its arguments.
    """

    master: Id
    incarnation: Id
    round: Count
    words: Annotated[list[Word], Field(min_length=1, max_length=MAX_WORDS, fail_fast=True)]


class NewNodeFields(Wire):
    """A node that a plan adds; see core/plan.py, NewNode."""

    slots: Slots
    node_id: Id | None = None
    labels: Labels = {}
    weight: Weight | None = None


class PlanRequest(Wire):
    """`POST /v1/groups/{g}/plan`: what a plan supposes, all at once; see core/plan.py, Changes."""

    remove: Annotated[list[Id], Field(max_length=MAX_PLANNED, fail_fast=True)] = []
    drain: Annotated[list[Id], Field(max_length=MAX_PLANNED, fail_fast=True)] = []
    add: Annotated[list[NewNodeFields], Field(max_length=MAX_PLANNED, fail_fast=True)] = []
    restart: Flag = False


class FailureReply(Reply):
    """How a worker failed."""

    local_rank: int
    rank: int
    exit_code: int | None = None
    signal: str | None = None
    message: str = ""
    permanent: bool = False


class RootCauseReply(Reply):
    """Why a group failed: its earliest failure, and on which node; `message` says `reason` in a sentence."""

    kind: str
    message: str
    round: int = 0
    node_id: str | None = None
    failure: FailureReply | None = None
    reason: FailedBecause


class MasterReply(Reply):
    """The round's master: where its store listens."""

    node_id: str
    address: str
    port: int
    script_port: int


class MemberReply(Reply):
    """A node's place in a round.

    Attributes:
        weights: in the state of a group: those of its slots, in the order of local ranks; None: all ranks of the round
            have the same.
    """

    node_id: str
    group_rank: int
    rank_offset: int
    slots: int
    address: str
    weights: list[float] | None = None


class StartReply(Reply):
    """A member's place in its round.

    Attributes:
        members: the whole round in rank order, for a node that joined with `wants_members`. For others the size of
            a `start` does not grow with the round.
        daemon: what the master wants this node to run, once it has said so; for a node that joined with `wants_daemon`.
        weights: how many ranks in a row have which weight, in rank order; None: all have the same.
        restarted_by: the failure that a restart was spent on to form this round, in a line.
    """

    group_rank: int
    rank_offset: int
    slots: int
    role_offset: int
    role_world_size: int
    world_size: int
    nnodes: int
    restart_count: int
    max_restarts: int
    master: MasterReply
    command: list[str] | None = None
    members: list[MemberReply] | None = None
    daemon: list[str] | None = None
    weights: list[tuple[int, float]] | None = None
    restarted_by: str | None = None


class SharesReply(Reply):
    """A decision on the shares of a round.

    Attributes:
        weights: how many ranks in a row have which weight, in rank order; empty: all have the same.
        source: what they follow from: `equal`, `by hand`, `measured` or `pace`.
    """

    round: int
    number: int
    weights: list[tuple[int, float]] = []
    source: str = ""


class DifferenceReply(Reply):
    """A setting that a group has, and the other value that was given."""

    name: str
    group: str
    given: str


class CancelledReply(Reply):
    """Who cancelled a job, at which wall-clock time (ISO 8601, UTC), and how long ago that was (seconds)."""

    by: str
    at: str
    ago_s: float | None = None


class StacksAsked(Reply):
    """Somebody wants to see the stacks of a node's workers; the agent answers with `StacksRequest`.

    Attributes:
        number: of the question.
        round: whose workers.
        ranks: which ones (global ranks); None: all of the node.
    """

    number: int
    round: int
    ranks: list[int] | None = None


class LogsAsked(StacksAsked):
    """Somebody wants to see the end of what a node's workers have written to stderr; answered as `StacksAsked` is."""


class NoticeReply(Reply):
    """A round is about to end.

    Attributes:
        kind: what will end it: `joined`, `drained`, `restarted` or `cancelled`.
        why: one sentence.
        left_s: for how much longer its workers may save at most (seconds).
    """

    kind: str
    why: str
    left_s: float


class DirectiveReply(Reply):
    """What a node has to do now.

    Attributes:
        version: opaque; changes with kind, round or code.
        code: what it says in a word.
        reason, why: why it says that, and the same in a sentence, with what is left of each wait; None: `why` says it.
        clock: what the server's clock reads, which the moments in `reason` are of (seconds).
        job: how many jobs the group has had, this one included.
        poll_s: how long the next poll may wait (seconds).
        lease_s: without a heartbeat for this long, the node is lost (seconds).
        keepalive_s: how soon TCP keepalive should notice that the other end's host is gone (seconds).
        restarts: how many restarts the job has used.
        replaced: the settings of the group that this node's join replaced, as they were and as it gave them.
        cancelled: with `exit` of a node that joined after the job was cancelled.
        hang: with `stop` and `exit`: the round was ended since its workers hung.
        hang_timeout_s: see protocol/settings.py.
        stacks, logs: in reply to a `POST` only.
        notice: with `start`: the round is about to end, and its workers may save now.
        warnings: with `start`: what differs between the nodes and matters.
    """

    kind: DirectiveKind
    version: str
    round: int
    code: str
    reason: Reason | None = None
    why: str
    clock: float = 0.0
    poll_s: float
    lease_s: float
    stop_timeout_s: float
    max_disconnect_s: float
    keepalive_s: float | None = None
    restarts: int = 0
    job: int = 1
    start: StartReply | None = None
    outcome: Shown[GroupState] | None = None
    exit_code: int | None = None
    root_cause: RootCauseReply | None = None
    replaced: list[DifferenceReply] | None = None
    cancelled: CancelledReply | None = None
    hang: bool | None = None
    hang_timeout_s: float | None = None
    stacks: StacksAsked | None = None
    logs: LogsAsked | None = None
    notice: NoticeReply | None = None
    warnings: list[str] | None = None


class StallReply(Reply):
    """Workers of a round wait for others.

    Attributes:
        kind: `behind` (some are behind the others), `no_answer` (their processes do not answer), `deadlock` (they wait
            for each other), `mismatch` (they asked for different collectives), `nothing_completes` (nobody is behind).
        facts, text: all of it, as a value and in a sentence; None: only the sentence is known.
        ranks: the first few that are waited for; for `nothing_completes`, none.
        node_id: the node of the first of them.
        since_s: for how long (seconds).
    """

    kind: str
    facts: StallFacts | Other | None = None
    text: str
    ranks: list[int] = []
    node_id: str | None = None
    since_s: float = 0.0


class WorkerReply(Reply):
    """How far a worker has come in the newest round, where its agent can see that.

    Attributes:
        rank, node_id: of the worker.
        state: as in `WorkerFields`.
        idle_s: how long nothing has changed (seconds).
        unseen: why its collectives cannot be known now; empty: they are.
        sources: which of torch's backends have told of them.
        collectives, per_s: how many collectives it has asked for in all its process groups, and how many a second.
        step, steps_per_s: what the script says itself; None: nothing.
        waiting: the share of this round in which it waited for others (0 to 1). The slowest worker waits least.
        weight: how much of the work it gets, compared with the others.
        pace: how fast it has been since that was decided, the fastest 1; None: nobody knows yet.
    """

    rank: int
    node_id: str
    state: str
    idle_s: float
    unseen: str = ""
    sources: str = ""
    collectives: int | None = None
    per_s: float | None = None
    step: int | None = None
    steps_per_s: float | None = None
    waiting: float | None = None
    weight: float = 1.0
    pace: float | None = None


class StackReply(Reply):
    """The Python stack of a worker's threads; without `text`, `why` there is none."""

    rank: int
    node_id: str
    text: str = ""
    why: str = ""


class StacksReply(Reply):
    """`POST /v1/groups/{g}/stacks`: in the order of ranks."""

    round: int
    stacks: list[StackReply]


class LogReply(Reply):
    """The end of what a worker has written to stderr; without `text`, `why` there is none."""

    rank: int
    node_id: str
    text: str = ""
    why: str = ""


class LogsReply(Reply):
    """`POST /v1/groups/{g}/logs`: in the order of ranks."""

    round: int
    logs: list[LogReply]


class RoundReply(Reply):
    """The newest round.

    Attributes:
        shares: the newest decision on how much of the work each rank gets.
        ended: why it is over; None while it runs.
        met: how many workers have found each other in the round's store; None: unknown.
        stall: who is waited for; None: nobody, as far as can be seen.
        notice: why it is about to end; None: it is not.
        workers: how far each worker has come; empty where nothing can be seen.
        stragglers: the first few workers for which the others wait much of the time, in a sentence each.
        unwatched: workers of which nobody can tell whether they hang, and why, in a sentence for each reason.
    """

    number: int
    world_size: int
    restart_count: int
    master: MasterReply
    members: list[MemberReply]
    shares: SharesReply | None = None
    ended: str | None = None
    met: int | None = None
    stall: StallReply | None = None
    notice: NoticeReply | None = None
    workers: list[WorkerReply] = []
    stragglers: list[str] = []
    unwatched: list[str] = []


NodeState = Literal[
    "ready",
    "not_ready",
    "spare",
    "starting",
    "running",
    "succeeded",
    "failed",
    "stopping",
    "suspect",
    "drained",
    "lost",
    "left",
]


class NodeReply(Reply):
    """A node as people see it.

    Attributes:
        port: where it hosts the store of a round; until then it accepts connections there, so that peers can try it.
        heard_s_ago: the time since its last heartbeat (seconds), None once it is gone.
        weighed: whether its weight was given by hand.
        speeds: how fast its slots were measured to be, in the order of local ranks; None: they were not measured.
    """

    node_id: str
    state: Shown[NodeState]
    slots: int
    address: str
    port: int = 0
    group_rank: int | None = None
    rank_offset: int | None = None
    heard_s_ago: float | None = None
    incarnation: str
    role: str
    weight: float = 1.0
    weighed: bool = False
    speeds: list[float] | None = None
    labels: dict[str, str]
    device: dict[str, str]
    why: str = ""
    failure: FailureReply | None = None


class CountsReply(Reply):
    """How many nodes and slots a group has, and where the nodes are."""

    nodes: int
    slots: int
    members: int
    spares: int
    gone: int


class GroupSummary(Reply):
    """A group in `GET /v1/groups`.

    Attributes:
        reason, why: why it stands where it stands, and the same in a sentence; None: `why` says it.
        clock: what the server's clock reads, which the moments in `reason` are of (seconds).
    """

    group_id: str
    state: Shown[GroupState]
    reason: Reason | None = None
    why: str
    clock: float = 0.0
    job: int
    round: int
    world_size: int
    restarts: int
    max_restarts: int
    counts: CountsReply


class UnreachableReply(Reply):
    """A node that could not reach a master, which will not become its master again."""

    node_id: str
    master: str


class GroupReply(GroupSummary):
    """`GET /v1/groups/{g}`: everything about a group.

    Attributes:
        warnings: what differs between its nodes and matters.
        facts: the same as values, and those of `stragglers` and `unwatched` of the round.
    """

    spec: dict[str, Any]
    current_round: RoundReply | None
    nodes: list[NodeReply]
    drained: list[str]
    unreachable: list[UnreachableReply] = []
    warnings: list[str] = []
    facts: list[AnyWarning] = []
    root_cause: RootCauseReply | None = None


QUARANTINED = "quarantined"
"""The state in a `GroupSummary` of a group that the server cannot serve."""


class RecordReply(Reply):
    """A record of the store: its value is text, or if it is damaged so that it is none, Base64."""

    key: str
    text: str | None = None
    base64: str | None = None


class ExportReply(Reply):
    """`GET /v1/groups/{g}/export`: what is stored of a group; `quarantined`: why the server cannot serve it."""

    group_id: str
    quarantined: str | None = None
    records: list[RecordReply]


class GroupsReply(Reply):
    """`GET /v1/groups`."""

    groups: list[GroupSummary]


class PlannedMemberReply(Reply):
    """A node's place in the round that would run; `was_offset` is its rank offset in the last one, if it was in it."""

    node_id: str
    group_rank: int
    rank_offset: int
    slots: int
    was_offset: int | None = None


class LeftOutReply(Reply):
    """A node that would be in no round, why, and the same in a clause."""

    node_id: str
    slots: int
    reason: LeftOutReason | None = None
    why: str = ""


class PlanReply(Reply):
    """`POST /v1/groups/{g}/plan`: what would happen; see core/plan.py, Plan."""

    group_id: str
    now: str
    state: Shown[GroupState]
    reason: Reason | None = None
    why: str
    in_s: float
    ended: str | None = None
    round: int
    world_size: int
    was_round: int
    was_world_size: int
    restarts: int
    master: str | None = None
    members: list[PlannedMemberReply]
    spares: list[LeftOutReply]
    gone: list[LeftOutReply]
    stops: list[str]
    restarted: list[str]
    moves: list[str]


class EventReply(Reply):
    """An event of a group's history; `at` is wall-clock time (ISO 8601, UTC), for people only.

    Attributes:
        cause: of a round that formed: what ended the one before.
        after_s: how long before it what led to it had happened (seconds); see protocol/events.py, Event.
        facts: what happened, as a value; `Other`: only a newer server knows it.
    """

    model_config = ConfigDict(defer_build=True)  # agents read none

    number: int
    at: str
    kind: str
    text: str
    node_id: str | None = None
    round: int | None = None
    cause: str | None = None
    after_s: float | None = None
    facts: Facts


class EventsReply(Reply):
    """`GET /v1/groups/{g}/events?after=N`; ask with `after=last` for later events."""

    model_config = ConfigDict(defer_build=True)

    events: list[EventReply]
    last: int


class SignInReply(Reply):
    """`POST /v1/sign-in-codes`: where a browser has to go on this server to be signed in to the dashboard.

    Attributes:
        path: with a code that works once; without one where nobody needs to sign in.
        expires_in_s: how long it works (seconds); None: always.
    """

    path: str
    expires_in_s: float | None = None


class ConflictReply(Reply):
    """What is in the way of a join or a `PUT` with other settings.

    Attributes:
        differences: the settings, with the group's value and the one that was given.
        nodes: the first few live nodes that joined with them.
        by_put: they were fixed by `PUT`.
        lost_in_s: when the last of these nodes is lost if none is heard again (seconds from now).
        retry_for_s: only if all of them are on their way out: how long that can take (seconds).
    """

    differences: list[DifferenceReply]
    nodes: list[str]
    by_put: bool
    lost_in_s: float | None = None
    retry_for_s: float | None = None


class ProblemReply(Reply):
    """Every error (RFC 9457).

    Attributes:
        directive: with a stale report: what the agent has to do now.
        conflict: with `spec_conflict`.
    """

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    directive: DirectiveReply | None = None
    conflict: ConflictReply | None = None


class HealthReply(Reply):
    """What runs here."""

    status: str
    service: str = "hetserver"
    version: str = __version__
    api_version: int = versions.MAJOR
    api_minor: int = versions.MINOR


class ReadyReply(HealthReply):
    """The role of this server among its peers, see `ReplicaStatus`."""

    role: str
    leader: str | None
