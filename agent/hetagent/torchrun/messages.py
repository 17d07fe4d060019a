"""What the plug-in tells: torchrun's users, torch's agent by errors that end it, and the server of a failure."""

import sys
from math import inf
from signal import SIGTERM

from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)

from hetagent.node import console
from hetagent.node.processes.signals import signal_name
from hetagent.torch_compat.callers import find_run_result, is_called_by_torchrun
from hetagent.workers.failures import MAX_CHARACTERS, escape_surrogates, format_failure_message, read_record
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.rounds import WorkerFailure


def translate_flags(text: str) -> str:
    """Advice that may name hetagent's flags, with what they are called here."""
    return f"{text} (with torchrun --server is --rdzv-endpoint, and a flag like --node-id is --rdzv-conf node_id=...)"


def log(node_id: str, text: str) -> None:
    """Show a message at the terminal."""
    console.log(f"hetrdzv[{node_id}]", text)


def format_exit(directive: Directive) -> str:
    """The text of an `exit` directive, with its outcome."""
    return f"the job failed: {directive.why}" if directive.outcome == "failed" else directive.why


def make_exit_error(directive: Directive) -> BaseException:
    """The exception that ends torch's agent after an `exit` directive.

    Under torchrun, a job that succeeded and a node that was drained become a `SystemExit` with hetagent's status.
    """
    cause = directive.root_cause.reason.code if directive.root_cause is not None else None
    if directive.outcome == "succeeded" or directive.code == "drained":
        # launch_agent() of torch 2.13 uses the result of LocalElasticAgent.run(), which is None after a graceful exit
        return (
            SystemExit(directive.exit_code)
            if is_called_by_torchrun()
            else RendezvousGracefulExitError(directive.why)
        )
    if cause in ("join_timeout", "impossible_world"):
        return RendezvousTimeoutError(format_exit(directive))
    text = format_exit(directive)
    if directive.outcome is None or cause == "no_master":  # whose advice is about flags
        text = translate_flags(text)
    if directive.round or directive.outcome:
        return RendezvousClosedError(text)
    return RendezvousConnectionError(text)


def find_first_failure() -> WorkerFailure:
    """The first failure that torch's agent knows of.

    If it has no result, no worker was started, and an exception may be on its way.
    """
    result = find_run_result()
    if result is None or not result.failures:
        error = sys.exc_info()[1]
        why = "see the output of torch's agent" if error is None else f"{type(error).__name__}: {error}"
        return WorkerFailure(local_rank=-1, rank=-1, message=escape_surrogates(why)[-MAX_CHARACTERS:])
    noticed = [*result.failures.items()]
    # one without a record was gone at once, unless torch has stopped it because of another
    rank, first = min(
        noticed,
        key=lambda item: (
            read_record(item[1].error_file).raised_at
            or (inf if item[1].exitcode == -SIGTERM and item is not noticed[0] else 0.0)
        ),
    )
    code = first.exitcode
    return WorkerFailure(
        local_rank=first.local_rank,
        rank=rank,
        exit_code=code if code >= 0 else None,
        signal=signal_name(-code) if code < 0 else None,
        message=format_failure_message(read_record(first.error_file)),
    )
