"""How a worker failed."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from hetrdzv.protocol.bounds import Body, Count, Duration, ExitCode, Id, ShortText, Text
from hetrdzv.protocol.hangs import Hang
from hetrdzv.protocol.settings import MAX_SLOTS, MAX_WORLD_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a worker failed.

    Attributes:
        local_rank, rank: of the worker. -1 stands for the node's one program, or, with neither exit code nor signal,
            for workers that could not be started at all.
        exit_code: its exit status, or None if a signal killed it.
        signal: the name of the signal that killed it (`SIGKILL`), or None.
        message: the end of its traceback or of its stderr.
        at: when the exit was seen, on the server's clock (seconds): `now - age_s`.
        raised_s: how long before that its exception was raised (seconds): the worker saved a snapshot, and unwound. It
            does not count for whose failure came first: a worker that is killed closes its connections before it ends.
        final: the node's agent gives up with it, so that this node takes part in no further round.
        lingers: its script has ended by an exception, but its process has not ended since.
        permanent: a restart would end the same way (the script has a syntax error), so none is spent.
        hang: nothing has exited, but the worker (rank -1: nobody in particular) kept others waiting for too long: who
            waited for whom. Then `message` is its Python stack, and `at` when the wait began.
    """

    local_rank: int
    rank: int
    exit_code: int | None = None
    signal: str | None = None
    message: str = ""
    at: float = 0.0
    raised_s: float = 0.0
    final: bool = False
    lingers: bool = False
    permanent: bool = False
    hang: Hang | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Body):
    """Workers that had ended with exit code 0 when others of their round failed, which may follow from that.

    Attributes:
        node_id, rank: of the first.
        others: how many more.
        before_s: how long before what the report is about the first one had ended (seconds).
    """

    node_id: Id
    rank: Annotated[int, Ge(0), Lt(MAX_WORLD_SIZE)]
    others: Count = 0
    before_s: Duration = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureFields(Body):
    """How a worker failed, as its agent says; see `Failure`."""

    local_rank: Annotated[int, Ge(-1), Lt(MAX_SLOTS)]
    rank: Annotated[int, Ge(-1), Lt(MAX_WORLD_SIZE)]
    exit_code: ExitCode | None = None
    signal: ShortText | None = None
    message: Text = ""
    raised_s: Duration = 0.0
    final: bool = False
    lingers: bool = False
    permanent: bool = False
