"""Finds the command that led to a state which cannot be kept, and refuses it alone.

Commands of one turn of the event loop are settled together and committed together. Where that fails, they are applied
again in halves, until the one at fault is left. Each such failure is a fault of hetserver.
"""

import logging
from collections.abc import Sequence

from hetrdzv.core.commands import Tick
from hetrdzv.core.group import Transition, empty, step
from hetrdzv.core.invariants import InvariantError
from hetrdzv.core.model import Group
from hetrdzv.core.rounds.timers import Leases
from hetrdzv.protocol.errors import Refused, ServerFault, UnknownGroup
from hetrdzv.protocol.facts.events import Event
from hetrdzv.service.ledger import Ledger, Proposal, checked_changes
from hetrdzv.service.liveness.leases import is_one_of_many

LOG_EVERY_S = 1.0
"""At most one fault is logged in this time (seconds): whoever causes one can cause many."""


class _Seldom(logging.Filter):
    """Passes one record in `LOG_EVERY_S`."""

    _until = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        due = record.created >= self._until
        if due:
            self._until = record.created + LOG_EVERY_S
        return due


logger = logging.getLogger(__name__)
logger.addFilter(_Seldom())


def apply_apart(
    ledger: Ledger, group_id: str, proposals: Sequence[Proposal], now: float, leases: Leases
) -> None:
    """Apply commands again of which some led to a state that cannot be kept: these are refused, the others are not.

    If the group cannot even go on without any of them, it is quarantined. No commit of the group may be in progress.

    Args:
        proposals: those that were taken back; the ones that still wait come after them.
        now: the server's clock (seconds).
    """
    if not ledger.is_settled(group_id) and ledger.head(group_id) is None:
        for proposal in proposals:
            proposal.refuse(UnknownGroup(f"group '{group_id}' was deleted"))
        return
    base = ledger.groups.get(group_id)
    proposals = [*proposals, *ledger.withdraw(group_id)]
    if base is not None:
        try:
            _apply(group_id, base, (), now, leases)
        except Exception as error:
            logger.error("group '%s' is quarantined: it cannot go on", group_id, exc_info=error)
            ledger.quarantine(group_id, _in_words(error), proposals)
            return
    for proposal in proposals:
        if proposal.command is None and not proposal.done.done():
            proposal.done.set_result(base)
    commands = [proposal for proposal in proposals if proposal.command is not None]
    _apply_halves(ledger, group_id, base, commands, now, leases)


def _apply_halves(
    ledger: Ledger, group_id: str, base: Group | None, proposals: list[Proposal], now: float, leases: Leases
) -> Group | None:
    """Propose again what commands make of a group, without those at fault; returns that."""
    try:
        applied, settled = _apply(group_id, base, proposals, now, leases)
    except Exception as error:
        if len(proposals) > 1:
            half = len(proposals) // 2
            base = _apply_halves(ledger, group_id, base, proposals[:half], now, leases)
            return _apply_halves(ledger, group_id, base, proposals[half:], now, leases)
        for proposal in proposals:
            what = type(proposal.command).__name__
            logger.error("%s is refused in group '%s'", what, group_id, exc_info=error)
            proposal.refuse(
                ServerFault(
                    f"hetserver could not keep what {what} led to in group '{group_id}', so nothing was changed: "
                    f"{_in_words(error)}. This is a fault of hetserver, whose log says more: please report it"
                )
            )
        return base
    for proposal, group, events in applied:
        ledger.propose_again(proposal, group, events)
    if applied:
        ledger.amend(group_id, settled.group, settled.events)
    return settled.group if applied else base


def _apply(
    group_id: str, base: Group | None, proposals: Sequence[Proposal], now: float, leases: Leases
) -> tuple[list[tuple[Proposal, Group, tuple[Event, ...]]], Transition]:
    """What commands make of a group one after the other, and what settling makes of the last.

    Raises:
        Exception: a command is at fault, or the group itself.
    """
    head = base if base is not None else empty(group_id, now)
    applied: list[tuple[Proposal, Group, tuple[Event, ...]]] = []
    refused: list[tuple[Proposal, Refused]] = []
    for proposal in proposals:
        if proposal.command is None:
            continue
        settles = not is_one_of_many(proposal.command)
        try:
            transition = step(head, proposal.command, now, leases, settles=settles)
        except Refused as error:
            refused.append((proposal, error))
            continue
        head = transition.group
        applied.append((proposal, head, transition.events))
    settled = step(head, Tick(), now, leases)
    checked_changes(base, settled.group)
    for proposal, refusal in refused:
        proposal.refuse(refusal)
    return applied, settled


def _in_words(error: Exception) -> str:
    return error.wrong if isinstance(error, InvariantError) else f"{type(error).__name__}: {error}"[:400]
