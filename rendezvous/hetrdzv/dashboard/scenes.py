"""What the sections of the pages show: from groups to HTML, each part made again only when it can have changed."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from hetrdzv.api import views
from hetrdzv.auth.policy import Permit
from hetrdzv.auth.tokens import Grant
from hetrdzv.core.model import Group, GroupState
from hetrdzv.dashboard.render import section
from hetrdzv.dashboard.timeline import Span, spans
from hetrdzv.protocol.past import KINDS, PastReply, past
from hetrdzv.protocol.wire import GroupReply, NodeReply, WorkerReply
from hetrdzv.service.progress.table import Seen
from hetrdzv.service.service import Service
from hetrdzv.storage.records import StoredEvent

ROWS = 64
"""Groups of more nodes show a map of all of them, and rows for those that are not as they should be."""

ALL_ROWS = 5_000
"""How many rows are shown to who asks for all."""

MOST_ROUNDS = 40
MOST_EVENTS = 100
MOST_WORKERS = 64
"""How many of each are shown; of the workers, the slowest."""

PACE_S = 5.0
"""How often the pace of the workers is shown again: it is measured over so long (seconds)."""

ORDINARY = {"running", "ready", "succeeded", "starting"}
"""States of nodes that need nobody's attention."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One slot of a node, with its global rank; `behind`: others wait for it."""

    rank: int | None
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A node as the page shows it.

    Attributes:
        ranks: in words.
        facts: its device and labels, in a line.
    """

    node: NodeReply
    master: bool
    cells: Sequence[Cell]
    ranks: str
    facts: str
    can_drain: bool
    can_undrain: bool


@dataclass(frozen=True, slots=True)
class Bar:
    """A span on the timeline, in thousandths of its width."""

    x: float
    width: float
    span: Span


@dataclass(frozen=True, slots=True)
class Pace:
    """A worker with its pace, and how that compares with the fastest (0 to 1)."""

    worker: WorkerReply
    share: float | None


def rows(reply: GroupReply) -> list[Row]:
    """The nodes of a group, in the order of their ranks."""
    current = reply.current_round
    master = current.master.node_id if current is not None and current.ended is None else None
    behind = set(current.stall.ranks) if current is not None and current.stall is not None else set()
    return [_row(node, node.node_id == master, set(reply.drained), behind) for node in reply.nodes]


def _row(node: NodeReply, is_master: bool, drained: set[str], behind: set[int]) -> Row:
    first = node.rank_offset
    shown = min(node.slots, 16)
    cells = [
        Cell(None) if first is None else Cell(first + slot, first + slot in behind) for slot in range(shown)
    ]
    ranks = "" if first is None else _ranks(first, node.slots)
    facts = [*node.device.values(), *(f"{name}={value}" for name, value in sorted(node.labels.items()))]
    is_out = node.node_id in drained
    gone = node.state in ("lost", "left", "drained")
    return Row(node, is_master, cells, ranks, " · ".join(facts), not gone and not is_out, is_out)


def _ranks(first: int, slots: int) -> str:
    return f"{first}" if slots == 1 else f"{first} to {first + slots - 1}"


def bars(found: PastReply, now: datetime) -> list[Bar]:
    """A group's past to be drawn; what is too short to be seen is made wide enough.

    Args:
        now: as given to `past`.
    """
    if found.whole_s <= 0:
        return []
    scale = 1000 / found.whole_s
    return [Bar(span.start * scale, max(2.0, span.length * scale), span) for span in spans(found, now)]


def paces(workers: Sequence[WorkerReply]) -> list[Pace]:
    """The workers with their pace, in the order of ranks; of many, those that others wait for most."""
    speeds = [speed for one in workers if (speed := _speed(one)) is not None]
    best = max(speeds, default=0.0)
    chosen = sorted(workers, key=lambda one: (one.waiting if one.waiting is not None else 1.0, one.rank))
    chosen = sorted(chosen[:MOST_WORKERS], key=lambda one: one.rank)
    return [Pace(one, None if best <= 0 else (_speed(one) or 0.0) / best) for one in chosen]


def _speed(one: WorkerReply) -> float | None:
    return one.steps_per_s if one.steps_per_s is not None else one.per_s


class GroupScene:
    """The sections of a group's page.

    Args:
        acts: whether they have the buttons that change something.
        rows: how many nodes are shown in rows at most.
        wall: wall-clock time.
    """

    def __init__(
        self,
        service: Service,
        group_id: str,
        *,
        acts: bool,
        rows: int = ROWS,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._service = service
        self._group_id = group_id
        self._acts = acts
        self._rows = rows
        self._wall = wall
        self._kept: dict[str, tuple[object, str]] = {}

    async def sections(self) -> Mapping[str, str]:
        """All sections by name, as they are now.

        Raises:
            UnknownGroup: the group is gone.
        """
        self._service.require_ready()
        group = self._service.group(self._group_id)
        events, last = self._service.history(self._group_id)
        seen = dict(self._service.progress.workers(group))
        make = partial(self._made, group, events, last, seen, self._service.now())
        return await asyncio.to_thread(make) if len(group.nodes) > ROWS else make()

    def _made(
        self,
        group: Group,
        events: Sequence[StoredEvent],
        last: int,
        seen: Mapping[int, Seen],
        now: float,
    ) -> Mapping[str, str]:
        heard_at = partial(self._service.silence.heard_at, group)
        brief = views.group_reply(group, now, heard_at, views.NONE, seen)
        wall = self._wall()
        found = past([views.event_reply(one) for one in events if one.event.kind in KINDS], wall)

        def everything() -> GroupReply:
            return views.group_reply(group, now, heard_at, views.ALL)

        def nodes() -> str:
            every = rows(everything())
            large = len(every) > self._rows
            shown = [row for row in every if row.node.state not in ORDINARY][:ROWS] if large else every
            return section(
                "nodes.html", rows=shown, every=every if large else [], acts=self._acts, group=brief
            )

        def pace() -> str:
            workers = views.group_reply(group, now, heard_at, views.ALL, seen).current_round
            known = workers.workers if workers is not None and group.active_round is not None else []
            return section("pace.html", paces=paces(known), total=len(known))

        def history() -> str:
            return section(
                "history.html", events=[views.event_reply(one) for one in reversed(events[-MOST_EVENTS:])]
            )

        def rounds() -> str:
            return section(
                "rounds.html",
                past=found,
                bars=bars(found, wall),
                newest=found.rounds[: -MOST_ROUNDS - 1 : -1],
                complete=not events or events[0].number == 1,
            )

        step = int(now / PACE_S) if seen else 0
        return {
            "actions": section("actions.html", group=brief, acts=self._acts),
            "now": section("now.html", group=brief),
            "facts": section("facts.html", group=brief, past=found),
            "cause": self._keep("cause", group.root_cause, lambda: section("cause.html", group=brief)),
            "nodes": self._keep("nodes", _Same(group), nodes),
            "rounds": rounds(),
            "pace": self._keep("pace", (brief.round, brief.state, step), pace),
            "history": self._keep("history", last, history),
        }

    def _keep(self, name: str, key: object, make: Callable[[], str]) -> str:
        """A section, made again if what it is made of has changed."""
        known = self._kept.get(name)
        if known is None or known[0] != key:
            known = self._kept[name] = key, make()
        return known[1]


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """Equal only for the very same group: frozen, it changes by being replaced."""

    group: Group

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.group is self.group

    __hash__ = None  # type: ignore[assignment]


class GroupsScene:
    """The sections of the page with all groups.

    Args:
        grant: whose groups it shows.
    """

    def __init__(self, service: Service, grant: Grant) -> None:
        self._service = service
        self._grant = grant

    async def sections(self) -> Mapping[str, str]:
        """All sections by name, as they are now."""
        self._service.require_ready()
        now = self._service.now()
        shown = [group for group in self._service.groups() if self._grant.covers(group.group_id)]
        shown.sort(key=lambda group: (_ORDER[group.state], group.group_id))

        def make() -> Mapping[str, str]:
            summaries = [
                (views.group_summary(group, now), max(0.0, now - group.created_at)) for group in shown
            ]
            return {"groups": section("groups.html", groups=summaries)}

        many = sum(len(group.nodes) for group in shown) > views.LARGE
        return await asyncio.to_thread(make) if many else make()


_ORDER = {
    GroupState.FAILED: 0,
    GroupState.WAITING: 1,
    GroupState.STARTING: 2,
    GroupState.RUNNING: 3,
    GroupState.SUCCEEDED: 4,
    GroupState.CANCELLED: 5,
}
"""What needs attention comes first."""


def frame(permit: Permit) -> dict[str, Any]:
    """What the frame around every page shows of who looks at it."""
    return {
        "csrf": permit.csrf or "",
        "signed_in": permit.session is not None,
        "who": str(permit.grant) if permit.session is not None else "",
    }
