"""The sections of a group's page, each from one template."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from hetrdzv.api import views
from hetrdzv.api.workers import reported_stall
from hetrdzv.core.model import Group
from hetrdzv.dashboard.nodes import ORDINARY, on_map, paces
from hetrdzv.dashboard.render import EVERY_S, section
from hetrdzv.protocol.pages import GroupReply
from hetrdzv.protocol.reasons.advice import after_exit
from hetrdzv.protocol.reasons.reason import beside
from hetrdzv.protocol.reasons.snapshots import of_group
from hetrdzv.protocol.rounds import RoundRecord, total_time, with_downs
from hetrdzv.protocol.stacks import About, line_of
from hetrdzv.service.progress.samples import unwatched
from hetrdzv.service.service import Service

ROWS = 15
"""Groups of more nodes show a map of all of them, and rows for those that are not as they should be."""

ALL_ROWS = 5_000
"""How many rows are shown to who asks for all."""

LARGE = 64
"""Sections of groups of more nodes are made in a thread."""

MOST_ROUNDS, OPEN_ROUNDS, MOST_EVENTS = 40, 5, 100
"""How many are shown; rounds after the first few are folded away."""

SECTIONS = ("now", "cause", "facts", "timeline", "nodes", "pace", "rounds", "history")


def version(group: Group, name: str, now: float) -> object:
    """Of what a section is made from: what is the same again is not made again."""
    return group if name == "nodes" else (group, int(now / EVERY_S))


@dataclass(frozen=True, slots=True)
class Bar:
    """What a stretch of time of a round went into (a `Phase`); x and width in thousandths of the timeline."""

    phase: str
    length: float
    round: int
    x: float
    width: float


def bars(rounds: Sequence[RoundRecord]) -> list[Bar]:
    """What the time of rounds went into; what is too short to be seen is made wide enough."""
    drawn: list[Bar] = []
    start, whole_s = 0.0, sum(sum(record.time.values()) for record in rounds)
    for record in rounds:
        for phase, length in record.time.items():
            x, width = 1000 * start / whole_s, 1000 * length / whole_s
            drawn.append(Bar(phase, length, record.number, x, max(2.0, width)))
            start += length
    return drawn


class GroupPage:
    """A group, as its page shows it now. What it takes from the service it takes at once: sections may be made in a
    thread.

    Args:
        acts: whether it has the buttons that change something.
        whole: whether all nodes and workers have rows, however many they are.
    """

    def __init__(self, service: Service, group: Group, *, acts: bool, whole: bool = False) -> None:
        self._group, self._acts, self._whole, group_id = group, acts, whole, group.group_id
        self._now, self._rounds = service.now(), service.rounds(group_id)
        self._time = total_time(self._rounds)
        self._events, _ = service.history(group_id)
        self._seen = dict(service.progress.workers(group))
        self._heard_at = partial(service.leases.heard_at, group)
        self._refused, self._stall = service.refusals.lately(group), reported_stall(group)
        kept = service.post_mortems.rounds if acts else lambda *_: frozenset()
        self._left = {
            "group_id": group_id,
            "outputs": kept(group_id, About.LOGS),
            "stacks": kept(group_id, About.STACKS),
        }
        self.sections: Mapping[str, Callable[[], str]] = {
            "now": self._now_section,
            "cause": self._cause,
            "facts": lambda: section("facts.html", group=self._brief, time=self._time),
            "timeline": self._timeline,
            "nodes": self._nodes,
            "pace": self._pace,
            "rounds": self._rounds_section,
            "history": self._history,
        }

    @cached_property
    def _brief(self) -> GroupReply:
        """The group without its nodes."""
        return views.group_reply(self._group, self._now, self._heard_at, nodes=False)

    def _now_section(self) -> str:
        group, brief, running, stall = self._group, self._brief, self._group.active_round, self._stall
        failed = running.restarted_by if running is not None and not group.state.terminal else None
        return section(
            "now.html",
            group=brief,
            acts=self._acts,
            state=brief.shown_state,
            snapshot=of_group(brief),
            restarted_by="; ".join(filter(None, (failed.message, after_exit(failed)))) if failed else "",
            notes=[*brief.warnings, *unwatched(group, self._seen, self._now), *self._refused],
            stack=stall.stack if stall is not None else "",
            at=line_of(stall.stack) if stall is not None else "",
            beside=beside(brief.reason, brief.clock),
            stack_of=stall.ranks[0] if stall is not None and stall.ranks else None,
        )

    def _cause(self) -> str:
        cause = self._brief.root_cause
        details = cause.details if cause is not None else ""
        return section("cause.html", cause=cause, details=details, **self._left)

    def _timeline(self) -> str:
        over = bool(self._rounds) and self._rounds[-1].is_last
        return section("timeline.html", time=self._time, bars=bars(self._rounds), over=over)

    def _nodes(self) -> str:
        reply = views.group_reply(self._group, self._now, self._heard_at)
        current = reply.current_round
        every = on_map(reply) if len(reply.nodes) > (ALL_ROWS if self._whole else ROWS) else []
        unusual = [node for node in every if node.shown_state not in ORDINARY]
        unusual.sort(key=lambda node: node.shown_state == "spare")
        return section(
            "nodes.html",
            rows=unusual[:ROWS] if every else reply.nodes,
            more=max(0, len(unusual) - ROWS),
            dots=every,
            master=current.master.node_id if current is not None and current.ended is None else None,
            behind=views.ranks_behind(self._group),
            tally=Counter(node.shown_state for node in every).most_common(),
            acts=self._acts,
            group=reply,
            over=self._group.state.terminal,
            whole=self._whole,
        )

    def _pace(self) -> str:
        shown = paces(self._seen.values(), self._now, stall=self._stall, whole=self._whole)
        return section(
            "pace.html",
            group=self._brief,
            paces=shown if self._group.active_round is not None else None,
            behind=views.ranks_behind(self._group),
            whole=self._whole,
        )

    def _rounds_section(self) -> str:
        newest = with_downs(self._rounds)[: -MOST_ROUNDS - 1 : -1]
        return section("rounds.html", newest=newest[:OPEN_ROUNDS], older=newest[OPEN_ROUNDS:], **self._left)

    def _history(self) -> str:
        newest: Sequence[Any] = self._events[: -MOST_EVENTS - 1 : -1]
        return section("history.html", events=newest)
