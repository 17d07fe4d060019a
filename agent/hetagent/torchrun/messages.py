"""What the plug-in tells torchrun's users: advice in torchrun's terms, and the errors that end torch's agent."""

import re

from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)

from hetagent.node import console
from hetagent.torch_compat.callers import torchrun_is_calling
from hetagent.torchrun.conf import OPTIONS
from hetrdzv.protocol.directive import DirectiveReply

TORCHRUNS_FLAGS = frozenset({"local_addr", "max_restarts"})
"""Options for which torchrun has a flag of the same name."""

_HETAGENTS_FLAG = re.compile(
    rf"(?<!hetserver with )--({'|'.join(OPTIONS.keys() - TORCHRUNS_FLAGS).replace('_', '-')})\b(?!-)(?: (/\S+))?"
)


def as_rdzv_conf(text: str) -> str:
    """Rewrite advice that names hetagent's flags into torchrun's equivalents."""

    def option(flag: re.Match[str]) -> str:
        return f"--rdzv-conf {flag[1].replace('-', '_')}={flag[2] or '...'}"

    text = re.sub(r"--server\b(?!-)", "--rdzv-endpoint", text)
    return _HETAGENTS_FLAG.sub(option, text).replace("start hetagent", "start torchrun")


def tell(node_id: str, text: str) -> None:
    """Show a message to the person at the terminal."""
    console.tell(f"hetrdzv[{node_id}]", as_rdzv_conf(text))


def exit_error(directive: DirectiveReply) -> BaseException:
    """The exception that ends torch's agent after an `exit` directive.

    Under torchrun, a job that succeeded and a node that was drained become a `SystemExit` with hetagent's status.
    """
    text = as_rdzv_conf(directive.why)
    if directive.outcome == "succeeded" or directive.code == "drained":
        # launch_agent() of torch 2.13 uses the result of LocalElasticAgent.run(), which is None after a graceful exit
        return SystemExit(directive.exit_code) if torchrun_is_calling() else RendezvousGracefulExitError(text)
    if directive.root_cause is not None and directive.root_cause.kind == "join_timeout":
        return RendezvousTimeoutError(text)
    if directive.round or directive.outcome:
        return RendezvousClosedError(text)
    return RendezvousConnectionError(text)
