"""Answers nodes whose workers ask for a decision on their shares."""

from hetrdzv.core.commands import Refresh
from hetrdzv.core.model import Group, Shares
from hetrdzv.core.rounds.transitions import require_speaker
from hetrdzv.protocol.errors import StaleRound
from hetrdzv.service.service import Service


async def decided(
    service: Service, group_id: str, node_id: str, incarnation: str, round_number: int, number: int
) -> Shares:
    """A decision on the shares of a round, once it is committed; the first who asks for it brings it about.

    Raises:
        StaleRound: the round is over.
        NoSuchShares: it is not the next decision, nor one that is still kept.
        Refused, StorageError, ServerStopping: as `Service.execute`.
    """
    group = service.group(group_id)
    require_speaker(group, node_id, incarnation)
    if (known := _known(group, round_number, number)) is not None:
        return known
    command = Refresh(
        node_id=node_id,
        incarnation=incarnation,
        round=round_number,
        number=number,
        worked=service.progress.worked(group),
    )
    found = _known(await service.execute(group_id, command), round_number, number)
    if found is None:  # it has ended in the same turn
        raise StaleRound(f"round {round_number} of group '{group_id}' has ended")
    return found


def _known(group: Group, round_number: int, number: int) -> Shares | None:
    """A decision on the running round that is committed."""
    active = group.active_round
    if active is None or group.state.terminal or active.number != round_number:
        return None
    return active.decided(number)
