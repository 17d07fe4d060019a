"""Requests and replies of the HTTP API, shared by the server and its clients.

JSON uses the same names as the core. Every time is in seconds; durations end in `_s`.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, StringConstraints

from hetrdzv.core.commands import ReportKind as ReportKind  # part of the wire, for clients
from hetrdzv.core.daemons import MAX_CHARACTERS, MAX_WORDS, PROGRAM
from hetrdzv.core.directive import DirectiveKind as DirectiveKind
from hetrdzv.core.model import SPEC_BOUNDS, GroupState, OnJoin

API_VERSION = 1
"""Version of this API; client and server of different ones refuse each other and say which is older."""

VERSION_HEADER = "Het-Api-Version"
MAX_BODY_BYTES = 1 << 20
MAX_SLOTS = 1024
DAEMON = PROGRAM

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
Text = Annotated[str, StringConstraints(max_length=16_384)]
Word = Annotated[str, StringConstraints(max_length=MAX_CHARACTERS)]
ShortText = Annotated[str, StringConstraints(max_length=256)]
Whole = Annotated[int, Strict(), Field(ge=-(2**53), le=2**53)]
"""A JSON number that every reader takes for the same one; neither a string nor true or false."""
Seconds = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Flag = Annotated[bool, Strict()]
Port = Annotated[Whole, Field(ge=1, le=65_535)]


class Wire(BaseModel):
    """Base of what is received: unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Reply(BaseModel):
    """Base of what is answered: fields that a newer server adds are ignored by an older client."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def _with_ranges(schema: dict[str, Any]) -> None:
    """Write into the JSON schema of `SpecFields` what the core checks: ranges, and what cannot be null."""
    fields = schema["properties"]
    for name, _, least, most in SPEC_BOUNDS:
        fields[name]["anyOf"][0] |= {"minimum": least, "maximum": most}
    fields["command"]["anyOf"][0]["minItems"] = 1
    for name in fields.keys() - {"max_nodes", "command"}:
        fields[name] |= fields[name].pop("anyOf")[0]


class SpecFields(Wire):
    """Fields of a group's spec; one that is not given is not compared (ranges: core/model.py)."""

    model_config = ConfigDict(json_schema_extra=_with_ranges)

    min_nodes: Whole | None = None
    max_nodes: Whole | None = None
    max_restarts: Whole | None = None
    join_timeout_s: Seconds | None = None
    last_call_s: Seconds | None = None
    replace_wait_s: Seconds | None = None
    stop_timeout_s: Seconds | None = None
    lease_s: Seconds | None = None
    max_disconnect_s: Seconds | None = None
    on_join: OnJoin | None = None
    command: Annotated[list[Text], Field(max_length=1024)] | None = None

    def given(self) -> dict[str, object]:
        """The fields that were given, by name."""
        return {name: getattr(self, name) for name in sorted(self.model_fields_set)}


class JoinRequest(Wire):
    """`PUT /v1/groups/{g}/nodes/{n}`: join, or ready for the next round."""

    incarnation: Id
    slots: Annotated[Whole, Field(ge=1, le=MAX_SLOTS)]
    address: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    port: Port
    script_port: Annotated[Whole, Field(ge=0, le=65_535)] = 0
    after_round: Annotated[Whole, Field(ge=0)] = 0
    role: Id = "default"
    labels: Annotated[dict[ShortText, ShortText], Field(max_length=64)] = {}
    device: Annotated[dict[ShortText, ShortText], Field(max_length=64)] = {}
    wants_command: Flag = False
    wants_members: Flag = False
    wants_daemon: Flag = False
    spec: SpecFields = SpecFields()


class FailureFields(Wire):
    """Why a worker ended badly; see core/model.py, Failure."""

    local_rank: Annotated[Whole, Field(ge=-1, lt=MAX_SLOTS)]
    rank: Annotated[Whole, Field(ge=-1)]
    exit_code: Whole | None = None
    signal: ShortText | None = None
    message: Text = ""


class ReportRequest(Wire):
    """`POST /v1/groups/{g}/nodes/{n}/report`; `age_s`: how many seconds ago the agent saw what it reports."""

    incarnation: Id
    round: Annotated[Whole, Field(ge=0)]
    kind: ReportKind
    age_s: Annotated[Seconds, Field(ge=0, le=1e9)] = 0.0
    failure: FailureFields | None = None
    message: Text = ""


class DaemonRequest(Wire):
    """`POST /v1/groups/{g}/nodes/{n}/daemon`: what the master of a round has node `n` run.

    Attributes:
        master, incarnation: who speaks.
        words: the program, which is orted, and its arguments.
    """

    master: Id
    incarnation: Id
    round: Annotated[Whole, Field(ge=0)]
    words: Annotated[list[Word], Field(min_length=1, max_length=MAX_WORDS)]


class FailureReply(Reply):
    """A worker's failure as it is told to everybody."""

    local_rank: int
    rank: int
    exit_code: int | None = None
    signal: str | None = None
    message: str = ""


class RootCauseReply(Reply):
    """Why a group failed: the earliest failure and whose it was."""

    kind: str
    message: str
    round: int = 0
    node_id: str | None = None
    failure: FailureReply | None = None


class MasterReply(Reply):
    """Where the round's store listens."""

    node_id: str
    address: str
    port: int
    script_port: int


class MemberReply(Reply):
    """A node's place in a round."""

    node_id: str
    group_rank: int
    rank_offset: int
    slots: int
    address: str


class StartReply(Reply):
    """A member's own place in its round.

    Attributes:
        members: all of the round in rank order, for a node that joined with `wants_members`: only then does the
            size of a `start` grow with the round.
        daemon: what the master has this node run, once it has; for a node that joined with `wants_daemon`.
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


class DirectiveReply(Reply):
    """What a node has to do now.

    Attributes:
        version: opaque; changes with kind, round or reason.
        poll_s: how long the next poll may wait.
        lease_s: how long the server believes in the node without hearing it.
        restarts: how many restarts the job has spent.
    """

    kind: DirectiveKind
    version: str
    round: int
    reason: str
    why: str
    poll_s: float
    lease_s: float
    stop_timeout_s: float
    max_disconnect_s: float
    restarts: int = 0
    start: StartReply | None = None
    outcome: GroupState | None = None
    exit_code: int | None = None
    root_cause: RootCauseReply | None = None


class RoundReply(Reply):
    """The newest round; `ended` says why it is over, where it is."""

    number: int
    world_size: int
    restart_count: int
    master: MasterReply
    members: list[MemberReply]
    ended: str | None = None


NodeState = Literal[
    "ready",
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
    """A node as people see it; `heard_s_ago` is None for one that is gone."""

    node_id: str
    state: NodeState
    slots: int
    address: str
    group_rank: int | None = None
    rank_offset: int | None = None
    heard_s_ago: float | None = None
    incarnation: str
    role: str
    labels: dict[str, str]
    device: dict[str, str]
    why: str = ""
    failure: FailureReply | None = None


class CountsReply(Reply):
    """How many nodes and slots a group has, in its round and beside it."""

    nodes: int
    slots: int
    members: int
    spares: int
    gone: int


class GroupSummary(Reply):
    """A line of `GET /v1/groups`."""

    group_id: str
    state: GroupState
    why: str
    job: int
    round: int
    world_size: int
    restarts: int
    max_restarts: int
    counts: CountsReply


class UnreachableReply(Reply):
    """A node that could not reach the port of a master; that one is not made master of it again."""

    node_id: str
    master: str


class GroupReply(GroupSummary):
    """`GET /v1/groups/{g}`: everything about a group."""

    spec: dict[str, Any]
    current_round: RoundReply | None
    nodes: list[NodeReply]
    drained: list[str]
    unreachable: list[UnreachableReply] = []
    root_cause: RootCauseReply | None = None


class GroupsReply(Reply):
    """`GET /v1/groups`."""

    groups: list[GroupSummary]


class EventReply(Reply):
    """A line of a group's history; `at` is wall-clock time (ISO 8601, UTC), for people only."""

    number: int
    at: str
    kind: str
    text: str
    node_id: str | None = None
    round: int | None = None
    cause: str | None = None


class EventsReply(Reply):
    """`GET /v1/groups/{g}/events?after=N`; ask again with `after=last` for what comes then."""

    events: list[EventReply]
    last: int


class ProblemReply(Reply):
    """Every error (RFC 9457). `directive` comes with a stale report: what the agent has to do instead."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    directive: DirectiveReply | None = None
