"""What torch's agent keeps to itself when it calls a rendezvous handler: read from its keys and its stack frames."""

import sys
from collections.abc import Iterator
from types import FrameType

import torch
import torch.distributed.run
from torch.distributed.elastic.agent.server import api as server_api
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import RendezvousHandler
from torch.distributed.elastic.utils import store as store_utils

_TORCHRUN = (torch.distributed.run.main.__name__, torch.distributed.run.__file__)
"""Name and file of the function that is torchrun."""

BARRIER_ENTERED, BARRIER_PASSED = (
    server_api._TERMINAL_STATE_SYNC_ID + end
    for end in (store_utils._NUM_MEMBERS, store_utils._LAST_MEMBER_CHECKIN)
)
"""Keys of torch's exit barrier: counted up by every agent whose workers succeeded; set by the last one."""

ROLE_INFO, ASSIGNED_RANKS = "torchelastic/role_info/", "torchelastic/assigned_ranks/"
"""Prefixes of the keys with which torch's agents agree on ranks, followed by a node's group rank: every agent sets the
first, the master's answers with the second (SimpleElasticAgent._assign_worker_ranks)."""


def role_info(group_rank: int) -> bytes:
    """What an agent with one worker sets under `ROLE_INFO`."""
    return server_api._RoleInstanceInfo("", group_rank, 1).serialize()


def is_called_by_torchrun() -> bool:
    """Whether this process is a torchrun, rather than a program with an agent of its own."""
    return any((frame.f_code.co_name, frame.f_code.co_filename) == _TORCHRUN for frame in _callers())


def find_worker_spec(handler: RendezvousHandler) -> WorkerSpec | None:
    """The workers that the agent starts that calls this handler; None if no agent of torch's does.

    Looks at torch's frames only: a frame whose variables have been read keeps them, and so this handler, alive.
    """
    for frame in _callers():
        if frame.f_code.co_filename == server_api.__file__:
            for value in list(frame.f_locals.values()):
                if isinstance(value, WorkerSpec) and value.rdzv_handler is handler:
                    return value
    return None


def find_run_result() -> RunResult | None:
    """How the workers of the agent that calls have ended, which it has in a variable; None if none was started."""
    for frame in _callers():
        for value in list(frame.f_locals.values()):
            if isinstance(value, RunResult):
                return value
    return None


def find_ending_signal() -> str | None:
    """The signal that ends torch's agent right now (`SIGTERM`); None if none does."""
    error = sys.exc_info()[1]
    return error.sigval.name if isinstance(error, SignalException) else None


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
