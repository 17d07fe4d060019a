"""The entry point for `torchrun --rdzv-backend=hetrdzv`.

Every torchrun on the machine loads this module, whatever its backend, so it imports nothing slow.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def backend() -> "Callable[[RendezvousParameters], RendezvousHandler]":
    """What torch's registry keeps under our name: a function that creates the handler of a job."""
    return create_handler


def create_handler(params: "RendezvousParameters") -> "RendezvousHandler":
    """Create the handler of a job (docs/launch.md).

    Removes `HET_TOKEN` from the environment, so that the workers do not inherit it.

    Raises:
        ValueError: the endpoint, the run id or `--rdzv-conf` makes no sense; says what to change.
        TokenFileError, TlsError: a token or certificate file cannot be used.
    """
    from hetagent.torchrun.conf import parse_conf
    from hetagent.torchrun.handler import TorchrunHandler
    from hetagent.torchrun.messages import translate_flags
    from hetrdzv.auth.tls import TlsError

    try:
        return TorchrunHandler(parse_conf(params))
    except TlsError as error:
        raise TlsError(translate_flags(str(error))) from None
