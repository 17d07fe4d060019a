"""The page with all groups: what needs attention first, what ended long ago apart."""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from hetrdzv.api import views
from hetrdzv.auth.tokens import Grant
from hetrdzv.dashboard.render import section
from hetrdzv.protocol.pages import BY_URGENCY, GroupSummary, is_old, urgency
from hetrdzv.service.service import Service


def count_by_state(groups: Sequence[GroupSummary]) -> list[tuple[str, int]]:
    """How many groups are in each state, in the order of these."""
    counts = Counter(group.shown_state for group in groups)
    return [(state, counts[state]) for state in BY_URGENCY if counts[state]]


def overview(
    service: Service, grant: Grant, url: str, token_file: str = ""
) -> Callable[[], Mapping[str, str]]:
    """What makes the section of all groups that a grant covers, in a thread if need be."""
    now = service.now()
    groups = [group for group in service.groups() if grant.covers(group.group_id)]
    aside = [(name, why) for name, why in service.quarantined().items() if grant.covers(name)]
    token = f"--token-file {shlex.quote(token_file)} " if token_file else ""

    def make() -> Mapping[str, str]:
        shown = [views.group_summary(group, now) for group in groups]
        shown += [views.quarantined_summary(*each) for each in aside]
        shown.sort(key=urgency)
        old = [group for group in shown if is_old(group)]
        html = section(
            "groups.html",
            groups=shown[: len(shown) - len(old)],
            old=old,
            tally=count_by_state(shown),
            tally_of_old=count_by_state(old),
            ages={group.group_id: max(0.0, now - group.created_at) for group in groups},
            start=f"hetagent --server {url} {token}--group NAME train.py",
            token_file=token_file,
        )
        return {"groups": html}

    return make
