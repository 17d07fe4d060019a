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
from hetrdzv.service.service import Service
from hetrdzv.words.urgency import ORDER, is_old, urgency


@dataclass(frozen=True, slots=True)
class Line:
    """A group in the table.

    Attributes:
        age_s: since it was made (seconds); None: it is over, or nobody knows.
    """

    summary: GroupSummary
    state: str
    age_s: float | None = None

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
            "ended": summary.ended_s_ago,
        }


def line(group: Group, now: float) -> Line:
    """A group as it is now."""
    summary = views.group_summary(group, now)
    over = summary.ended_s_ago is not None
    return Line(summary, summary.shown_state, None if over else max(0.0, now - group.created_at))


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
            lines = [line(group, now) for group in shown]
            lines += [Line(views.quarantined_summary(*each), QUARANTINED) for each in aside]
            lines.sort(key=lambda each: urgency(each.summary))
            old = [each for each in lines if is_old(each.summary)]
            new = lines[: len(lines) - len(old)]
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
