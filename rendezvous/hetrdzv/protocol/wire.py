"""Requests and replies of the HTTP API, for the server and its clients.

Names are those of the core. Times are in seconds; names of durations end in `_s`.
"""

from typing import Annotated, Any

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
from pydantic_core import PydanticCustomError

from hetrdzv.protocol import codec as codec  # reads and writes unions
from hetrdzv.protocol.bounds import (
    MAX_KIND,
    MAX_LABEL_CHARACTERS,
    MAX_LABELS,
    MAX_NOT_READY,
    MAX_NUMBER,
    MAX_PLANNED,
    MAX_SECONDS,
    MAX_WEIGHT,
    MIN_WEIGHT,
    AtMost,
)
from hetrdzv.protocol.daemon import MAX_CHARACTERS, MAX_WORDS
from hetrdzv.protocol.directive import (
    CancelledReply as CancelledReply,
)
from hetrdzv.protocol.directive import (
    DirectiveReply as DirectiveReply,
)
from hetrdzv.protocol.directive import (
    FailureReply as FailureReply,
)
from hetrdzv.protocol.directive import (
    LogsAsked as LogsAsked,
)
from hetrdzv.protocol.directive import (
    MasterReply as MasterReply,
)
from hetrdzv.protocol.directive import (
    MemberReply as MemberReply,
)
from hetrdzv.protocol.directive import (
    NoticeReply as NoticeReply,
)
from hetrdzv.protocol.directive import (
    RootCauseReply as RootCauseReply,
)
from hetrdzv.protocol.directive import (
    StacksAsked as StacksAsked,
)
from hetrdzv.protocol.directive import (
    StartReply as StartReply,
)
from hetrdzv.protocol.ids import ID_PATTERN, MAX_ID_LENGTH
from hetrdzv.protocol.pages import (
    QUARANTINED as QUARANTINED,
)
from hetrdzv.protocol.pages import (
    ConflictReply as ConflictReply,
)
from hetrdzv.protocol.pages import (
    CountsReply as CountsReply,
)
from hetrdzv.protocol.pages import (
    EventReply as EventReply,
)
from hetrdzv.protocol.pages import (
    EventsReply as EventsReply,
)
from hetrdzv.protocol.pages import (
    ExportReply as ExportReply,
)
from hetrdzv.protocol.pages import (
    GroupReply as GroupReply,
)
from hetrdzv.protocol.pages import (
    GroupsReply as GroupsReply,
)
from hetrdzv.protocol.pages import (
    GroupSummary as GroupSummary,
)
from hetrdzv.protocol.pages import (
    HealthReply as HealthReply,
)
from hetrdzv.protocol.pages import (
    LeftOutReply as LeftOutReply,
)
from hetrdzv.protocol.pages import (
    LogsReply as LogsReply,
)
from hetrdzv.protocol.pages import (
    NodeReply as NodeReply,
)
from hetrdzv.protocol.pages import (
    NodeState as NodeState,
)
from hetrdzv.protocol.pages import (
    PlannedMemberReply as PlannedMemberReply,
)
from hetrdzv.protocol.pages import (
    PlanReply as PlanReply,
)
from hetrdzv.protocol.pages import (
    ProblemReply as ProblemReply,
)
from hetrdzv.protocol.pages import (
    ReadyReply as ReadyReply,
)
from hetrdzv.protocol.pages import (
    RecordReply as RecordReply,
)
from hetrdzv.protocol.pages import (
    RoundReply as RoundReply,
)
from hetrdzv.protocol.pages import (
    StacksReply as StacksReply,
)
from hetrdzv.protocol.pages import (
    StallReply as StallReply,
)
from hetrdzv.protocol.pages import (
    UnreachableReply as UnreachableReply,
)
from hetrdzv.protocol.pages import (
    WorkerReply as WorkerReply,
)
from hetrdzv.protocol.rooms.progress import NodeProgress, Stack
from hetrdzv.protocol.settings import MAX_SLOTS, MAX_WORLD_SIZE, SETTINGS, Setting
from hetrdzv.protocol.states import ReportKind

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


class PollRequest(Wire):
    """`POST /v1/groups/{g}/nodes/{n}/directive`: a poll that also says how far the node's workers have come.

    Attributes:
        after, wait_s: as the parameters `after` and `wait` of the `GET`.
    """

    incarnation: Id
    after: ShortText | None = None
    wait_s: Annotated[Duration, Field(le=3600)] = 0.0
    progress: NodeProgress | None = None


class StacksRequest(Wire):
    """`POST /v1/groups/{g}/nodes/{n}/stacks`: an agent's answer to what `StacksAsked` or `LogsAsked` asks."""

    incarnation: Id
    number: Whole
    stacks: Annotated[tuple[Stack, ...], AtMost(MAX_SLOTS)]


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
