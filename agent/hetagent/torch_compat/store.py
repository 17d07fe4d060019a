"""The round's store: opened on a socket that is there already, and asked how many workers have come."""

import socket
import struct
from datetime import timedelta

from torch.distributed import TCPStore

from hetagent.torch_compat.flags import RELEASE

_VALIDATE, _ADD, _MAGIC = 0, 4, 0x3C85F7CE
"""Of the protocol of TCPStore: two kinds of query, and the word that comes after the first."""

_ANSWER_S = 2.0


def hosted_store(
    host: str, listener: socket.socket, timeout: timedelta, release: tuple[int, ...] = RELEASE
) -> TCPStore:
    """A store that listens on a socket which is open already; takes the socket.

    Only the number tells whether torch's newer kind of store can do that (since 2.8, pytorch#150215): it says so when
    it is asked to, but on the console too. The older kind does the same work with more threads.
    """
    return TCPStore(
        host_name=host,
        port=listener.getsockname()[1],
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        use_libuv=release >= (2, 8),
        master_listen_fd=listener.detach(),
    )


def workers_in(store: tuple[str, int]) -> int | None:
    """How many workers have come to a TCPStore since it was made; None if it does not say.

    Each counts itself there when it opens the store with a world size, as `init_process_group` does; torch's own
    interface does not show the number.

    Args:
        store: its address and port.
    """
    key = b"init/"
    query = struct.pack("=BIBQ", _VALIDATE, _MAGIC, _ADD, len(key)) + key + struct.pack("=q", 0)
    try:
        with socket.create_connection(store, _ANSWER_S) as asked:
            asked.sendall(query)
            answer = asked.recv(8, socket.MSG_WAITALL)
    except OSError:
        return None
    return int(struct.unpack("=q", answer)[0]) if len(answer) == 8 else None
