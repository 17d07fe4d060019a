"""In which order people are shown groups."""

import click

from hetrdzv.cli.hetctl import get
from hetrdzv.cli.hetctl.tables import lines
from hetrdzv.protocol.pages import RECENT_S, GroupsReply, GroupSummary
from hetrdzv.protocol.reasons.reason import Reason


def group(group_id: str, state: str, ended_s_ago: float | None = None) -> GroupSummary:
    return GroupSummary(
        group_id=group_id,
        state=state,
        reason=Reason(code="?", message=""),
        ended_s_ago=ended_s_ago,
    )


IN_ORDER = (
    group("set-aside", "quarantined"),
    group("b", "failed", 5.0),
    group("a", "failed", 60.0),
    group("waits", "waiting"),
    group("runs-3", "running"),
    group("runs-12", "running"),
    group("done", "succeeded", 7.0),
    group("newer", "pondering"),
    group("old", "failed", RECENT_S + 1),
    group("old-too", "succeeded", RECENT_S + 1),
)


def test_hetctl_lists_first_what_needs_attention() -> None:
    by_name = GroupsReply(groups=tuple(sorted(IN_ORDER, key=lambda group: group.group_id)))
    with click.Context(click.Command("get")):
        shown = [(line.split() or [""])[0] for line in lines(*get.groups_view(by_name))]
    names = [group.group_id for group in IN_ORDER]
    assert [word for word in shown if word in names] == names
