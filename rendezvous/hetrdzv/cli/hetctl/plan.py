"""What would happen to a group, as `--dry-run` shows it: a heading, and a line for each node."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.calls import look
from hetrdzv.cli.hetctl.tables import one_line
from hetrdzv.protocol.requests.plans import Changes, Plan, PlannedMember
from hetrdzv.protocol.states import OVER
from hetrdzv.protocol.texts.phrasing import count, names
from hetrdzv.words.reasons import ended


def show(group: str, request: Changes) -> None:
    """Ask what would happen to a group, and print that."""
    look(lambda client: client.plan(group, request), lambda plan: view(plan, request))


def view(plan: Plan, request: Changes) -> Iterator[RenderableType]:
    """A plan as tables."""
    yield _heading(plan, request)
    rows = list(_rows(plan))
    if rows:
        table = tables.new_table(
            tables.word("NODE"),
            tables.word("IS"),
            *tables.numbers("RANKS", "OFFSET", "SLOTS"),
            tables.folded("CHANGE", 10),
        )
        for row in rows:
            table.add_row(*map(one_line, row))
        yield ""
        yield table


def _heading(plan: Plan, request: Changes) -> Table:
    facts = [
        ("group", one_line(plan.group_id)),
        ("if", f"{names(request.drain)} is drained" if request.drain else "the group is restarted"),
        ("now", one_line(plan.now) if plan.was_round else ""),
        ("then", _then(plan)),
        ("because", one_line(plan.ended or "")),
    ]
    for name, who in (("restarts", plan.restarted), ("moves", plan.moves), ("stops", plan.stops)):
        facts.append((name, f"{names(map(one_line, who))} ({count(len(who), 'node')})" if who else ""))
    return tables.new_grid(fact for fact in facts if fact[1])


def _then(plan: Plan) -> str:
    if plan.state in OVER:
        return f"nothing: the job is over, it {ended(plan.state)}; to run it again: hetctl restart {plan.group_id}"
    if not plan.round:
        return f"{plan.state}: {one_line(plan.why)}"
    if plan.round == plan.was_round:
        return f"the same: round {plan.round} goes on"
    size = f"round {plan.round}, world size {plan.world_size} on {count(len(plan.members), 'node')}"
    waits = f", after {plan.in_s:.0f} s of waiting" if plan.in_s >= 0.5 else ""
    stop = " and the time that workers take to stop" if plan.restarted else ""
    return f"{size}{waits}{stop if waits else ''}; master {one_line(plan.master or '')}"


def _rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    restarted = frozenset(plan.restarted)
    for member in plan.members:
        what = "master" if member.group_rank == 0 else "member"
        first, last = member.rank_offset, member.rank_offset + member.slots - 1
        ranks = str(last) if member.slots == 1 else f"{first}-{last}"
        change = _change(plan, member, member.node_id in restarted)
        yield member.node_id, what, ranks, str(first), str(member.slots), change
    stops, other = frozenset(plan.stops), "spare" if plan.round else "waits"
    for spare in plan.spares:
        change = "; ".join(["stops"] * (spare.node_id in stops) + [spare.why] * bool(spare.why))
        yield spare.node_id, other, "-", "-", str(spare.slots), change
    for gone in plan.gone:
        yield gone.node_id, "gone", "-", "-", str(gone.slots), gone.why


def _change(plan: Plan, member: PlannedMember, restarts: bool) -> str:
    """What happens to a member."""
    if plan.round == plan.was_round or (member.was_offset is None and not plan.was_round):
        return ""
    verb = "restarts" if restarts else "starts"
    moves = member.was_offset not in (None, member.rank_offset)
    return f"{verb}; offset was {member.was_offset}" if moves else verb
