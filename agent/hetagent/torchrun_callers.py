"""What torch's agent does not tell a rendezvous handler, read off the frames that call it.

Changes when torch's agent keeps it elsewhere.
"""

import sys
from collections.abc import Iterator
from types import FrameType

import torch.distributed.run
from torch.distributed.elastic.agent.server.api import RunResult

from hetagent.failures import describe_exit, failure_message
from hetrdzv.wire import FailureFields


def torchrun_is_calling() -> bool:
    """Whether this process is a torchrun, and not a program that has an agent of its own."""
    main, path = torch.distributed.run.main.__name__, torch.distributed.run.__file__
    return any((frame.f_code.co_name, frame.f_code.co_filename) == (main, path) for frame in _callers())


def failure_of_callers() -> FailureFields:
    """The first failure that torch's agent knows of.

    It tells a handler nothing, but calls it with the result of its workers in a variable. Where there is none,
    no worker was started.
    """
    result = _result_of_callers()
    if result is None or not result.failures:
        why = "torch's agent says nothing more here; see what it printed"
        return FailureFields(local_rank=-1, rank=-1, message=why)
    rank, first = min(result.failures.items(), key=lambda item: item[1].timestamp)
    code = first.exitcode
    return FailureFields(
        local_rank=first.local_rank,
        rank=rank,
        exit_code=code if code >= 0 else None,
        signal=describe_exit(code).removeprefix("killed by ") if code < 0 else None,
        message=failure_message(first.error_file, None, code),
    )


def _result_of_callers() -> RunResult | None:
    for frame in _callers():
        for value in frame.f_locals.values():
            if isinstance(value, RunResult):
                return value
    return None


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
