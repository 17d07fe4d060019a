"""What the sections of a group's page show: from groups to HTML, each part made again only when it can have changed."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from typing import Any, TypeVar

from starlette.requests import Request

from hetrdzv.api import views
from hetrdzv.auth.policy import permit_of
from hetrdzv.core.model import Group
from hetrdzv.dashboard.nodes import BLOCKS, ORDINARY, blocks, dots, paces, rows, shape, tally
from hetrdzv.dashboard.render import section
from hetrdzv.dashboard.sessions import SignedIn, csrf_of
from hetrdzv.dashboard.timeline import Span, spans, speed_line, step_line
from hetrdzv.protocol.pages import EventReply, GroupReply
from hetrdzv.protocol.rooms.stacks import EARLIER, About, line_of
from hetrdzv.service.progress.detectors import detected
from hetrdzv.service.progress.table import Seen
from hetrdzv.service.progress.trail import Point
from hetrdzv.service.service import Service
from hetrdzv.storage.records import StoredEvent
from hetrdzv.words.advice import after_exit, step_in_parts
from hetrdzv.words.causes import failed_worker, failure_details
from hetrdzv.words.past import KINDS, PastReply, past
from hetrdzv.words.phases import Phase
from hetrdzv.words.rooms import SUMMARY
from hetrdzv.words.warnings import warning

Made = TypeVar("Made")

ROWS = 15
"""Groups of more nodes show a map of all of them, and rows for those that are not as they should be."""

ALL_ROWS = 5_000
"""How many rows are shown to who asks for all."""

APART_NODES = 64
"""The page of a group of more nodes is made in a thread."""

MOST_ROUNDS = 40
MOST_EVENTS = 100
EVENTS_BLOCK = 20
"""How many of each are shown. Events are sent in two parts: the older changes rarely."""

OPEN_ROUNDS = 5
"""How many rounds are not folded away."""

STEPS = ((60.0, 1.0), (600.0, 5.0), (inf, 60.0))
"""Until so long after a group's last event (seconds), its past is told again in steps of so many seconds."""

MAPS = [f"map-{number}" for number in range(BLOCKS)]
"""The sections with the parts of the map."""

PACE_S = 5.0
"""How often the pace of the workers is shown again: it is measured over so long (seconds)."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A span on the timeline, in thousandths of its width."""

    x: float
    width: float
    span: Span


def bars(reply: PastReply, now: datetime) -> list[Bar]:
    """A group's past to be drawn; what is too short to be seen is made wide enough.

    Args:
        now: as given to `past`.
    """
    if reply.whole_s <= 0:
        return []
    scale = 1000 / reply.whole_s
    return [Bar(span.start * scale, max(2.0, span.length * scale), span) for span in spans(reply, now)]


def told_until(told: Sequence[EventReply], now: datetime) -> datetime:
    """Up to when a group's past is told: to the second at first, later to five and then to the minute, so that what is
    shown of it changes more and more rarely.

    Args:
        told: its events, in order.
        now: with its time zone.
    """
    if not told:
        return now
    last = datetime.fromisoformat(told[-1].at)
    since_s = max(0.0, (now - last).total_seconds())
    step_s = next(step_s for below_s, step_s in STEPS if since_s < below_s)
    return last + timedelta(seconds=since_s // step_s * step_s)


class GroupScene:
    """The sections of a group's page.

    Args:
        acts: whether they have the buttons that change something.
        whole: whether all nodes and workers have rows, however many they are.
        wall: wall-clock time.
    """

    def __init__(
        self,
        service: Service,
        group_id: str,
        *,
        acts: bool,
        whole: bool = False,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._service = service
        self._group_id = group_id
        self._acts = acts
        self._whole = whole
        self._wall = wall
        self._kept: dict[str, tuple[object, Any]] = {}

    async def sections(self) -> Mapping[str, str]:
        """All sections by name, as they are now.

        Raises:
            UnknownGroup: the group is gone.
        """
        self._service.require_ready()
        group = self._service.group(self._group_id)
        events, last = self._service.history(self._group_id)
        seen = dict(self._service.progress.workers(group))
        trail = self._service.progress.trail(self._group_id)
        make = partial(self._made, group, events, last, seen, trail, self._service.now())
        return await asyncio.to_thread(make) if len(group.nodes) > APART_NODES else make()

    def _made(
        self,
        group: Group,
        events: Sequence[StoredEvent],
        last: int,
        seen: Mapping[int, Seen],
        trail: Sequence[Point],
        now: float,
    ) -> Mapping[str, str]:
        heard_at = partial(self._service.silence.heard_at, group)
        brief = views.group_reply(group, now, heard_at, views.NONE)
        told = self._keep(
            "told", last, lambda: [views.event_reply(e) for e in events if e.event.kind in KINDS]
        )
        wall = told_until(told, self._wall())
        past_reply = self._keep("past", (last, wall), lambda: past(told, wall))
        step = int(now / PACE_S) if seen else 0
        left = self._left(group, past_reply)
        running = group.active_round
        stall = running.told_stall if running is not None else None

        def timeline() -> str:
            drawn = bars(past_reply, wall)
            phases = [phase for phase in Phase if any(bar.span.phase is phase for bar in drawn)]
            complete = not events or events[0].number == 1
            return section("timeline.html", past=past_reply, bars=drawn, phases=phases, complete=complete)

        def rounds() -> str:
            newest = past_reply.rounds[: -MOST_ROUNDS - 1 : -1]
            return section("rounds.html", newest=newest[:OPEN_ROUNDS], older=newest[OPEN_ROUNDS:], **left)

        def cause() -> str:
            details = failure_details(brief.root_cause) if brief.root_cause is not None else ""
            return section("cause.html", cause=brief.root_cause, details=details, **left)

        def pace() -> str:
            shown = paces(seen.values(), now, stall=stall, whole=self._whole)
            lines = [("steps/s", speed_line(trail)), ("step", step_line(trail))]
            return section(
                "pace.html",
                group=brief,
                paces=shown if running is not None else None,
                behind=views.ranks_behind(group),
                whole=self._whole,
                lines=[line for line in lines if line[1] is not None],
            )

        older = last - last % EVENTS_BLOCK  # what comes after these is sent again with every event

        def history(since: int, until: int) -> str:
            known = [
                event for event in events[-MOST_EVENTS - EVENTS_BLOCK :] if since < event.number <= until
            ]
            return section("history.html", events=[views.event_reply(event) for event in reversed(known)])

        at_pace = (brief.round, brief.state, step)
        of_workers = self._keep("detected", at_pace, lambda: detected(group, seen, now))
        return {
            "actions": section("actions.html", group=brief, acts=self._acts),
            "now": section(
                "now.html",
                group=brief,
                acts=self._acts,
                next_step=step_in_parts(brief.group_id, brief.reason) if brief.reason else [],
                state=brief.shown_state,
                summary=[(name, text) for name, shown, _ in SUMMARY if (text := shown(brief))],
                restarted_by="; ".join(
                    filter(None, (failed_worker(running.restarted_by), after_exit(running.restarted_by)))
                )
                if running is not None and running.restarted_by is not None and not group.state.terminal
                else "",
                notes=[warning(fact) for fact in (*of_workers, *self._service.refusals.lately(group))],
                stack=stall.stack if stall is not None else "",
                at=line_of(stall.stack) if stall is not None else "",
                stack_of=stall.ranks[0] if stall is not None and stall.ranks else None,
            ),
            "facts": section("facts.html", group=brief, past=past_reply),
            "cause": self._keep("cause", (group.root_cause, left), cause),
            **self._keep("nodes", _Same(group), lambda: self._nodes(group, brief, now)),
            "timeline": self._keep("timeline", (last, wall), timeline),
            "rounds": self._keep("rounds", (last, wall, left), rounds),
            "pace": self._keep("pace", at_pace, pace),
            "history": self._keep("history", last, lambda: history(older, last)),
            "older": self._keep("older", older, lambda: history(older - MOST_EVENTS, older)),
        }

    def _left(self, group: Group, told: PastReply) -> dict[str, Any]:
        """Of which rounds that are over it can be shown what workers wrote, and where they were."""
        if not self._acts:
            return {"group_id": group.group_id, "outputs": frozenset(), "stacks": frozenset()}
        over = [one.number for one in told.rounds if one.ended_at is not None]
        with_agents = over[-EARLIER:] if group.live and not group.state.terminal else ()
        traces = self._service.traces
        return {
            "group_id": group.group_id,
            "outputs": traces.rounds(group.group_id, About.LOGS).union(with_agents),
            "stacks": traces.rounds(group.group_id, About.STACKS),
        }

    def _nodes(self, group: Group, brief: GroupReply, now: float) -> Mapping[str, str]:
        """The nodes, in rows or as a map; `brief` has none."""
        heard_at = partial(self._service.silence.heard_at, group)
        every, more = dots(group) if len(group.nodes) > (ALL_ROWS if self._whole else ROWS) else [], 0
        if not every:
            reply = views.group_reply(group, now, heard_at)
        else:
            unusual = [dot for dot in every if dot.behind or dot.state not in ORDINARY]
            unusual.sort(key=lambda dot: dot.state == "spare")
            shown = [group.nodes[dot.node_id] for dot in unusual[:ROWS]]
            nodes = tuple(views.node_reply(group, node, heard_at(node), now) for node in shown)
            reply = replace(brief, nodes=nodes)
            more = len(unusual) - len(nodes)
        head = section(
            "nodes.html",
            rows=rows(reply),
            more=more,
            tally=tally(every),
            acts=self._acts,
            group=brief,
            over=group.state.terminal,
            whole=self._whole,
        )
        look = shape(every)
        return {"nodes": head} | {
            name: self._keep(name, (look, block), partial(section, "map.html", dots=block, look=look))
            for name, block in zip(MAPS, map(tuple, blocks(every)), strict=True)
        }

    def _keep(self, name: str, key: object, make: Callable[[], Made]) -> Made:
        """A part of the page, made again if what it is made of has changed."""
        known = self._kept.get(name)
        if known is None or known[0] != key:
            known = self._kept[name] = key, make()
        made: Made = known[1]
        return made


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """Equal only for the very same group: frozen, it changes by being replaced."""

    group: Group

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.group is self.group

    __hash__ = None  # type: ignore[assignment]


def frame(request: Request) -> dict[str, Any]:
    """What the frame around every page shows of who looks at it."""
    permit = permit_of(request)
    signed_in = isinstance(permit, SignedIn)
    return {
        "csrf": csrf_of(request) or "",
        "signed_in": signed_in,
        "who": str(permit.grant) if signed_in else "",
    }
