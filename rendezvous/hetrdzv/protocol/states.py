"""The words for states and kinds: what groups, nodes, rounds, reports and directives can be."""

from enum import StrEnum

EXIT_FAILED = 1
EXIT_CANCELLED = 3
EXIT_DRAINED = 4
"""What the server has an agent exit with, where no code of a worker says it; others: hetagent/statuses.py."""


class GroupState(StrEnum):
    """Where a group stands (docs/design.md, "State machine")."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether the group's outcome is decided."""
        return self in (GroupState.SUCCEEDED, GroupState.FAILED, GroupState.CANCELLED)


HANGS_STATE = "hangs"
"""What people are told of a group whose workers wait for one that does not come, and of the node of that one."""


class NodePhase(StrEnum):
    """How far a node has got in its newest round, or why it is gone."""

    READY = "ready"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    LEFT = "left"

    @property
    def is_gone(self) -> bool:
        """Whether the server no longer counts on the node."""
        return self in (NodePhase.LOST, NodePhase.LEFT)


class EndKind(StrEnum):
    """What ended a round."""

    FAILED = "failed"
    LOST = "lost"
    LEFT = "left"
    DRAINED = "drained"
    JOINED = "joined"
    RESTARTED = "restarted"
    MASTER_UNREACHABLE = "master_unreachable"
    CANCELLED = "cancelled"  # of a `EndNotice` only: the job finishes then


class StallKind(StrEnum):
    """What is wrong where workers wait for too long."""

    BEHIND = "behind"
    NO_ANSWER = "no_answer"
    MISMATCH = "mismatch"
    NOTHING_COMPLETES = "nothing_completes"


class ReportKind(StrEnum):
    """What a member reports about its workers in a round."""

    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ENDED = "ended"  # of some workers only, when others of the round failed
    READY_TO_STOP = "ready_to_stop"
    MASTER_UNREACHABLE = "master_unreachable"
    LEAVING = "leaving"
    PARTING = "parting"


class DirectiveKind(StrEnum):
    """The four things that a node can be told to do."""

    WAIT = "wait"
    START = "start"
    STOP = "stop"
    EXIT = "exit"
