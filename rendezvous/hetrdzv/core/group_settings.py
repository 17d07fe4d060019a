"""Agrees on a group's settings: whoever gives one first fixes it, for as long as a node relies on it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hetrdzv.core.commands import Join
from hetrdzv.core.model import Group, Node
from hetrdzv.core.rounds.reconcile import reconcile_group
from hetrdzv.core.rounds.records import list_records
from hetrdzv.core.rounds.timers import STOP_TIMEOUT_MARGIN_S
from hetrdzv.core.rounds.transitions import StepContext, begin_job, can_begin_new_job, expire_leases
from hetrdzv.protocol.errors import SCRIPT_DIFFERENCE, SettingDifference, SettingsConflict, SpecConflict
from hetrdzv.protocol.reasons.events import settings_changed
from hetrdzv.protocol.settings import SETTINGS, find_fixed_differences

MAX_NODES_IN_ERROR = 8
"""How many of the nodes that hold a group to its settings an error lists."""


def adopt_settings(
    context: StepContext, given: Mapping[str, object], *, final: bool, node_id: str | None = None
) -> None:
    """Take over settings that were given, by a node or (None) a person.

    What was fixed before must be the same, unless the group has no live node and nobody made it on purpose (`PUT`):
    then the same job goes on with the new ones. `final`: this fixes the whole spec (an agent with a script, or a
    `PUT`).
    """
    group = context.group
    news: dict[str, Any] = {
        name: value for name, value in given.items() if value != getattr(group.spec, name)
    }
    replaced = find_fixed_differences(group.spec, news, group.fixed_settings)
    if replaced:
        expire_leases(context)
        if holders := _nodes_bound_by_settings(context.group):
            raise _make_conflict(context, replaced, holders)
        reconcile_group(context)  # the last round is judged
        if can_begin_new_job(context.group):
            begin_job(context)
            adopt_settings(context, given, final=final, node_id=node_id)
            return
        if context.group.by_put or context.group.state.is_terminal:
            raise _make_conflict(context, replaced, [])
        # The last round was formed under the old ones, so it is no longer the newest one.
        records = list_records(context.group, context.now)
        spec = replace(group.spec, **news)
        restarts = min(context.group.restarts, spec.max_restarts)
        context.update_group(spec=spec, round=None, records=records, restarts=restarts)
        context.add_event(settings_changed(node_id, replaced))
    elif news:
        context.update_group(spec=replace(group.spec, **news))
    context.update_group(fixed_settings=group.fixed_settings.union(SETTINGS if final else given))


def require_same_script(context: StepContext, join: Join) -> None:
    """Refuse a node that runs another script than the live nodes of its role.

    Two jobs are not to become one by accident.
    """
    if not join.script:
        return
    expire_leases(context)
    job = context.group.job
    alike = (
        node
        for node in context.group.nodes.values()
        if node.role == join.role and node.job == job and node.script and not node.is_gone
    )
    if (other := next(alike, None)) is not None and other.script != join.script:  # it speaks for all
        raise _make_conflict(
            context, [SettingDifference(SCRIPT_DIFFERENCE, other.script, join.script)], [other, *alike]
        )


def _nodes_bound_by_settings(group: Group) -> list[Node]:
    """The live nodes that rely on the group's settings, not those that joined only to be told to exit."""
    return [
        node
        for node in group.live_nodes
        if node.job == group.job and not (node.has_no_workers and node.node_id in group.drained)
    ]


def _make_conflict(
    context: StepContext, differences: Sequence[SettingDifference], holders: Sequence[Node]
) -> SpecConflict:
    group = context.group
    go = all(node.disconnected_at is not None or node.leaving is not None for node in holders)
    within_s = group.spec.lease_s + group.spec.stop_timeout_s + STOP_TIMEOUT_MARGIN_S
    has = ", ".join(f"{setting.name}={setting.group}" for setting in differences)
    given = ", ".join(f"{setting.name}={setting.given}" for setting in differences)
    end = "wait until its job is over" if holders else f"remove this one: hetctl delete {group.group_id}"
    return SpecConflict(
        f"group '{group.group_id}' has {has}, and {given} was given: leave that out, use another group, or {end}",
        SettingsConflict(
            differences=tuple(differences),
            nodes=tuple(node.node_id for node in holders[:MAX_NODES_IN_ERROR]),
            by_put=group.by_put,
            retry_for_s=within_s if holders and go and not group.by_put else None,
        ),
    )
