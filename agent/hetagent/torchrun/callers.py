"""What torch's agent does not tell a rendezvous handler, read from the stack frames that call it."""

import sys
from collections.abc import Iterator
from types import FrameType

from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import RendezvousHandler

from hetagent.job.failures import MAX_CHARACTERS, Left, failure_message, sendable
from hetagent.node.processes.signals import signal_name
from hetagent.torch_compat import AGENT_FILE, TORCHRUN
from hetrdzv.protocol.wire import FailureFields


def torchrun_is_calling() -> bool:
    """Whether this process is a torchrun, rather than a program with an agent of its own."""
    return any((frame.f_code.co_name, frame.f_code.co_filename) == TORCHRUN for frame in _callers())


def workers_of_callers(handler: RendezvousHandler) -> int | None:
    """How many workers the agent that calls this handler starts; None if no agent of torch's does.

    Looks at torch's frames only: a frame whose variables have been read keeps them, and so this handler, alive.
    """
    for frame in _callers():
        if frame.f_code.co_filename == AGENT_FILE:
            for value in list(frame.f_locals.values()):
                if isinstance(value, WorkerSpec) and value.rdzv_handler is handler:
                    return value.local_world_size
    return None


def failure_of_callers() -> FailureFields:
    """The first failure that torch's agent knows of.

    The agent does not tell a handler, but has the result of its workers in a variable when it calls one. If there is
    none, no worker was started, and an exception may be on its way.
    """
    result = _result_of_callers()
    if result is None or not result.failures:
        error = sys.exc_info()[1]
        why = "see the output of torch's agent" if error is None else f"{type(error).__name__}: {error}"
        return FailureFields(local_rank=-1, rank=-1, message=sendable(why)[-MAX_CHARACTERS:])
    rank, first = min(result.failures.items(), key=lambda item: item[1].timestamp)
    code = first.exitcode
    return FailureFields(
        local_rank=first.local_rank,
        rank=rank,
        exit_code=code if code >= 0 else None,
        signal=signal_name(-code) if code < 0 else None,
        message=failure_message(Left(error_file=first.error_file), code),
    )


def signal_of_callers() -> str | None:
    """The signal that ends torch's agent right now (`SIGTERM`); None if none does."""
    error = sys.exc_info()[1]
    return error.sigval.name if isinstance(error, SignalException) else None


def _result_of_callers() -> RunResult | None:
    for frame in _callers():
        for value in list(frame.f_locals.values()):
            if isinstance(value, RunResult):
                return value
    return None


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
