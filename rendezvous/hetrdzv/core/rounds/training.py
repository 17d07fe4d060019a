"""When the workers of a round begin to train, and when they last moved: by what agents tell."""

from dataclasses import replace

from hetrdzv.core.rounds.transitions import Work
from hetrdzv.protocol.progress import Moved
from hetrdzv.protocol.reasons.events import training_began


def note_training(work: Work, number: int, at: float) -> None:
    """The workers of a round have begun to train; nothing happens if it is over, or that is known."""
    active = work.group.active_round
    if active is None or active.number != number or active.trains_at is not None or work.group.state.terminal:
        return
    work.change(round=replace(active, trains_at=min(work.now, max(active.formed_at, at))))
    work.say(training_began(number))


def note_moved(work: Work, moved: Moved | None, age_s: float) -> None:
    """A member has said of its workers when they moved, really `age_s` seconds ago; None: nobody can tell."""
    active = work.group.active_round
    if active is None:
        return
    if moved is None:
        work.change(round=replace(active, unseen=True))
        return
    at = work.now - max(0.0, age_s)
    if moved.began_s is not None:
        note_training(work, active.number, at - moved.began_s)
    active = work.group.active_round
    if active is not None and moved.idle_s is not None:
        last = max(active.moved_at or 0.0, at - moved.idle_s)
        work.change(round=replace(active, moved_at=last))
