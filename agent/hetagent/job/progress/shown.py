"""What a worker has written, for those who may see it: plain text, its end, no secrets."""

from collections.abc import Callable, Collection, Iterable

from hetagent.job.failures import concealed, plain_text, sendable
from hetrdzv.protocol.rooms.stacks import Stack

MOST = 16_000
"""How much of a worker's log is told (characters)."""

MOST_OF_ALL = 240_000
"""How much of all logs of a node is told at once (characters): the server's requests have a limit."""

NOTHING = "nothing was written, or nobody keeps it"

OFF = "this node shows nothing that its workers write (--report-output off)"


def logs(ranks: Iterable[int], tail: Callable[[int], bytes], secrets: Collection[str]) -> list[Stack]:
    """The end of each worker's log.

    Args:
        ranks: whose (global ranks).
        tail: returns the last bytes of what a rank has written.
        secrets: what must not be told.
    """
    wanted = list(ranks)
    most = min(MOST, MOST_OF_ALL // max(1, len(wanted)))
    return [_log(rank, tail(rank), secrets, most) for rank in wanted]


def _log(rank: int, written: bytes, secrets: Collection[str], most: int) -> Stack:
    text = sendable(concealed(plain_text(written), secrets)).rstrip()
    if len(text) > most:  # whole lines, unless one fills it
        end = text[-most:]
        text = end.partition("\n")[2] or end
    return Stack(rank=rank, text=text) if text else Stack(rank=rank, why=NOTHING)
