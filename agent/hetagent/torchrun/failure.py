"""The failure that torch's agent knows of, for the server."""

import sys

from hetagent.node.processes.signals import signal_name
from hetagent.torch_compat.callers import result_of_callers
from hetagent.workers.failures import MAX_CHARACTERS, failure_message, read_record, sendable
from hetrdzv.protocol.failure import Failure


def failure_of_callers() -> Failure:
    """The first failure that torch's agent knows of.

    If it has no result, no worker was started, and an exception may be on its way.
    """
    result = result_of_callers()
    if result is None or not result.failures:
        error = sys.exc_info()[1]
        why = "see the output of torch's agent" if error is None else f"{type(error).__name__}: {error}"
        return Failure(local_rank=-1, rank=-1, message=sendable(why)[-MAX_CHARACTERS:])
    rank, first = min(result.failures.items(), key=lambda item: item[1].timestamp)
    code = first.exitcode
    return Failure(
        local_rank=first.local_rank,
        rank=rank,
        exit_code=code if code >= 0 else None,
        signal=signal_name(-code) if code < 0 else None,
        message=failure_message(read_record(first.error_file)),
    )
