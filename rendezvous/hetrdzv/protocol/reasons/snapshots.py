"""Snapshots: which step is safe, and what was lost."""

from hetrdzv.protocol.reasons.reason import Reason, ReasonCode, make_reason
from hetrdzv.protocol.snapshots import SafeSnapshotReply, SnapshotId
from hetrdzv.protocol.texts.node_rank_lists import NodeList
from hetrdzv.protocol.texts.phrasing import count_text, nodes_have


def _step_text(stamp: SnapshotId, of_round: str = "") -> str:
    earlier = " of an earlier job" if stamp.origin is not None else ""
    return f"step {stamp.step}{of_round}{earlier}"


def safe_step_text(value: SafeSnapshotReply | None) -> str:
    """Which step is safe, and where: `step 120 is safe (gpu1, gpu2; step 100 on disk)`; empty: none is."""
    if value is None or value.safe is None:
        return ""
    where = [str(value.nodes)] if value.nodes else []
    if value.on_disk is not None:
        where.append(f"{_step_text(value.on_disk)} on disk" if value.nodes else "on disk")
    return f"{_step_text(value.safe)} is safe ({'; '.join(where)})"


def lost_steps_text(steps: int | None, newer: str) -> str:
    """How many steps were lost, and why: `no step lost`, `7 steps lost (step 127 is incomplete: ...)`."""
    why = f" ({newer})" if newer else ""
    if steps is None:
        return f"an unknown number of steps lost{why}"
    return f"{count_text(steps, 'step') if steps else 'no step'} lost{why}"


def began_from_snapshot(
    number: int,
    stamp: SnapshotId | None,
    nodes: NodeList,
    steps_lost: int | None,
    newer: str = "",
    *,
    on_disk: bool = False,
) -> Reason:
    """A round begins from a snapshot, which some nodes have, or which is on disk."""
    cost, step, of_round = lost_steps_text(steps_lost, newer), None, None
    if stamp is None:
        text = f"round {number} begins from nothing: {cost}"
    else:
        step, of_round = stamp.step, stamp.round
        where = "is on disk" if on_disk else nodes_have(nodes)
        which = f"{_step_text(stamp, f' of round {of_round}')}, which {where}"
        # that nothing is lost says nothing about another job, which has written it
        loss = f": {cost}" if stamp.origin is None or steps_lost != 0 else ""
        text = f"round {number} begins from the snapshot of {which}{loss}"
    return make_reason(
        ReasonCode.BEGAN_FROM_SNAPSHOT,
        text,
        nodes=nodes,
        round=number,
        step=step,
        of_round=of_round,
        lost=steps_lost,
    )
