"""Answers nodes whose workers ask for a decision on their shares."""

from collections.abc import Mapping

from hetrdzv.core.memo import kept
from hetrdzv.core.model import Group
from hetrdzv.core.rooms.shares import Refresh, decided, decisions
from hetrdzv.core.rooms.shares.decisions import Worked
from hetrdzv.core.rounds.transitions import require_speaker
from hetrdzv.protocol.errors import StaleRound
from hetrdzv.protocol.rooms.shares import Shares
from hetrdzv.service.progress.table import Seen
from hetrdzv.service.service import Service


async def decision(
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
        worked=_counted(service, group, number),
    )
    shares = _known(await service.execute(group_id, command), round_number, number)
    if shares is None:  # it has ended in the same turn
        raise StaleRound(f"round {round_number} of group '{group_id}' has ended")
    return shares


def worked_of(seen: Mapping[int, Seen], decision_number: int) -> dict[int, Worked]:
    """How much of the time workers have worked since they got the shares of a decision, by global rank."""
    return {
        rank: Worked(entry.sample.busy, entry.sample.looks)
        for rank, entry in seen.items()
        if entry.sample.busy is not None and entry.decision == decision_number
    }


def _counted(service: Service, group: Group, number: int) -> Mapping[int, Worked]:
    """What the workers have done since the decision before one; counted once for all nodes that ask for that."""
    counts = _counts(group)
    if number not in counts and group.round is not None and number == decisions(group.round)[-1].number + 1:
        counts[number] = worked_of(service.progress.workers(group), number - 1)
    return counts.get(number, {})


@kept
def _counts(group: Group) -> dict[int, Mapping[int, Worked]]:
    return {}


def _known(group: Group, round_number: int, number: int) -> Shares | None:
    """A decision on the running round that is committed."""
    active = group.active_round
    if active is None or group.state.terminal or active.number != round_number:
        return None
    return decided(active, number)
