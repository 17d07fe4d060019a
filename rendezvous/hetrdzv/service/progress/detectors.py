"""What is found out about a running round by how far its workers have come: a row for each detector."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from hetrdzv.core.commands import Command
from hetrdzv.core.model import Group, Round
from hetrdzv.protocol.facts.warnings import AnyWarning
from hetrdzv.service.progress import unseen
from hetrdzv.service.progress.hangs import Hangs
from hetrdzv.service.progress.questions import Questions
from hetrdzv.service.progress.table import Seen
from hetrdzv.service.progress.traces import Traces

DETECTORS: Sequence[Callable[[Group, Round, Mapping[int, Seen], float], Sequence[AnyWarning]]] = (
    unseen.shown,
)
"""What warns of something: each gets a group, its running round, how far the workers of that have come, by global rank,
and the server's clock (seconds)."""


class Judge(Protocol):
    """What looks at the workers of all groups, and changes what is known of a round."""

    def look_soon(self, group_id: str) -> None:
        """There is news of workers that stand still, or that did."""

    def forget(self, group_id: str) -> None:
        """A group is over."""

    def clear(self) -> None:
        """The groups were loaded again."""


JUDGES: Sequence[
    Callable[
        [
            Callable[[], Mapping[str, Group]],
            Callable[[str, int], Mapping[int, Seen]],
            Callable[[], float],
            Callable[[str, Command], Coroutine[Any, Any, Group]],
            Callable[[Coroutine[Any, Any, None]], None],
            Questions,
            Traces,
        ],
        Judge,
    ]
] = (Hangs,)
"""Each is made of the groups, what is known of the workers of a round, the server's clock, what applies a command, what
runs a task, what agents can be asked, and what keeps what they answer."""


def detected(group: Group, seen: Mapping[int, Seen], now: float) -> tuple[AnyWarning, ...]:
    """What all detectors say of a group; nothing if no round runs."""
    active = group.active_round
    if active is None or group.state.terminal:
        return ()
    return tuple(warning for detector in DETECTORS for warning in detector(group, active, seen, now))
