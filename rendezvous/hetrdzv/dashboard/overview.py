"""The page with all groups: what needs attention first, what ended long ago apart."""

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hetrdzv.api import views
from hetrdzv.auth.tokens import Grant
from hetrdzv.core.model import Group
from hetrdzv.dashboard.render import section
from hetrdzv.protocol.pages import QUARANTINED, GroupSummary
from hetrdzv.protocol.urgency import ORDER, is_old, urgency
from hetrdzv.service.service import Service

COLUMNS = ("nodes", "ranks", "round", "restarts", "age", "ended")


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
        group = self.summary
        numbers = (
            group.counts.nodes,
            group.world_size,
            group.round,
            group.restarts,
            self.age_s,
            group.ended_s_ago,
        )
        return dict(zip(COLUMNS, numbers, strict=True))


def line(group: Group, now: float) -> Line:
    """A group as it is now."""
    summary = views.group_summary(group, now)
    over = summary.ended_s_ago is not None
    return Line(summary, summary.shown_state, None if over else max(0.0, now - group.created_at))


def columns(lines: Sequence[Line]) -> list[str]:
    """The columns in which at least one group has something to show."""
    used = {name for each in lines for name, value in each.cells.items() if value}
    return [name for name in COLUMNS if name in used]


def tally(lines: Sequence[Line]) -> list[tuple[str, int]]:
    """How many groups are in each state, in the order of these."""
    counts = Counter(each.state for each in lines)
    return [(state, counts[state]) for state in ORDER if counts[state]]


def overview(service: Service, grant: Grant, url: str, token_file: str = "") -> Callable[[], str]:
    """All groups that a grant covers: what makes that, in a thread if need be.

    Args:
        url: this server's, as the browser reaches it.
        token_file: on this machine; empty: no token is required.
    """
    now = service.now()
    groups = [group for group in service.groups() if grant.covers(group.group_id)]
    aside = [(name, why) for name, why in service.quarantined().items() if grant.covers(name)]
    token = f"--token-file {shlex.quote(token_file)} " if token_file else ""

    def make() -> str:
        lines = [line(group, now) for group in groups]
        lines += [Line(views.quarantined_summary(*each), QUARANTINED) for each in aside]
        lines.sort(key=lambda each: urgency(each.summary))
        old = [each for each in lines if is_old(each.summary)]
        return section(
            "groups.html",
            lines=lines[: len(lines) - len(old)],
            old=old,
            tally=tally(lines),
            tally_of_old=tally(old),
            columns=columns(lines),
            start=f"hetagent --server {url} {token}--group NAME train.py",
            token_file=token_file,
        )

    return make
