"""The entry point by which torchrun finds us: `torchrun --rdzv-backend=hetrdzv`.

Every torchrun of the machine loads this module, whatever its backend, so it imports nothing that takes time.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def backend() -> "Callable[[RendezvousParameters], RendezvousHandler]":
    """What torch's registry keeps under our name: makes the handler of one job."""
    return create_handler


def create_handler(params: "RendezvousParameters") -> "RendezvousHandler":
    """The handler of one job (docs/torchrun.md).

    Takes `HET_TOKEN` out of the environment, so that the workers do not inherit it.

    Raises:
        ValueError: the endpoint, the run id or `--rdzv-conf` makes no sense; says what to change.
        AccessError, TlsError: a token or certificate file cannot be used.
    """
    from hetagent.torchrun_conf import as_rdzv_conf, conf_of, take_token
    from hetagent.torchrun_handler import TorchrunHandler
    from hetrdzv.tls import TlsError

    try:
        conf = conf_of(params)
    except TlsError as error:
        raise TlsError(as_rdzv_conf(str(error))) from None
    return TorchrunHandler(conf, take_token(conf.token_file))
