"""The page with all groups: what needs attention first, what ended long ago apart."""

import asyncio
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetrdzv.api import views
from hetrdzv.auth.tokens import Grant
from hetrdzv.core.model import Group
from hetrdzv.dashboard.render import section
from hetrdzv.protocol.pages import QUARANTINED, GroupSummary
from hetrdzv.protocol.states import HANGS
from hetrdzv.protocol.texts.ids import natural_key
from hetrdzv.service.service import Service

RECENT_S = 3600.0
"""A group that ended longer ago than this is folded away (seconds)."""

ORDER = (QUARANTINED, "failed", HANGS, "waiting", "starting", "running", "succeeded", "cancelled")
"""States in the order in which they need attention."""


@dataclass(frozen=True, slots=True)
class Line:
    """A group in the table.

    Attributes:
        age_s: since it was made (seconds); None: it is over, or nobody knows.
        ended_s: since it ended (seconds); None: it has not.
    """

    summary: GroupSummary
    state: str
    age_s: float | None = None
    ended_s: float | None = None

    @property
    def is_old(self) -> bool:
        """Whether it ended long ago."""
        return self.ended_s is not None and self.ended_s > RECENT_S

    @property
    def cells(self) -> dict[str, object]:
        """Its numbers by column; what is None or 0 says nothing."""
        summary = self.summary
        return {
            "nodes": summary.counts.nodes,
            "ranks": summary.world_size,
            "round": summary.round,
            "restarts": summary.restarts,
            "age": self.age_s,
            "ended": self.ended_s,
        }


def line(group: Group, now: float) -> Line:
    """A group as it is now."""
    summary = views.group_summary(group, now)
    state = summary.shown_state
    if group.state.terminal and group.finished_at is not None:
        return Line(summary, state, ended_s=max(0.0, now - group.finished_at))
    return Line(summary, state, age_s=max(0.0, now - group.created_at))


def in_order(lines: Sequence[Line]) -> list[Line]:
    """Those that need attention first; of those that are over, the newest."""
    return sorted(
        lines,
        key=lambda each: (
            ORDER.index(each.state),
            each.ended_s or 0.0,
            natural_key(each.summary.group_id),
        ),
    )


def columns(lines: Sequence[Line]) -> list[str]:
    """The columns in which at least one group has something to show."""
    used = {name for each in lines for name, value in each.cells.items() if value}
    return [name for name in ("nodes", "ranks", "round", "restarts", "age", "ended") if name in used]


def tally(lines: Sequence[Line]) -> list[tuple[str, int]]:
    """How many groups are in each state, in the order of these."""
    counts = Counter(each.state for each in lines)
    return [(state, counts[state]) for state in ORDER if counts[state]]


class GroupsScene:
    """The sections of the page with all groups.

    Args:
        grant: whose groups it shows.
        url: this server's, as the browser reaches it.
        token_file: on this machine; empty: no token is required.
    """

    def __init__(self, service: Service, grant: Grant, url: str, token_file: str = "") -> None:
        self._service = service
        self._grant = grant
        self._token_file = token_file
        token = f"--token-file {shlex.quote(token_file)} " if token_file else ""
        self._start = f"hetagent --server {url} {token}--group NAME train.py"

    async def sections(self) -> Mapping[str, str]:
        """All sections by name, as they are now."""
        self._service.require_ready()
        now = self._service.now()
        shown = [group for group in self._service.groups() if self._grant.covers(group.group_id)]
        quarantined = self._service.quarantined().items()
        aside = [(name, why) for name, why in quarantined if self._grant.covers(name)]

        def make() -> Mapping[str, str]:
            lines = in_order(
                [line(group, now) for group in shown]
                + [Line(views.quarantined_summary(*each), QUARANTINED) for each in aside]
            )
            old = [each for each in lines if each.is_old]
            new = [each for each in lines if not each.is_old]
            used = columns(lines)
            return {
                "groups": section(
                    "groups.html",
                    lines=new,
                    old=len(old),
                    tally=tally(lines),
                    columns=used,
                    start=self._start,
                    token_file=self._token_file,
                ),
                "older": section("older.html", lines=old, new=len(new), tally=tally(old), columns=used),
            }

        many = len(shown) + sum(len(group.nodes) for group in shown) > views.LARGE
        return await asyncio.to_thread(make) if many else make()
