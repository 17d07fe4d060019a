"""What a worker has written, for those who may see it: plain text, its end, no secrets."""

from collections.abc import Callable, Collection

from hetagent.workers.failures import concealed, plain_text, sendable
from hetrdzv.protocol.stacks import About, Stack

MOST = 16_000
"""How much of a worker's log is told (characters)."""

MOST_OF_ALL = 240_000
"""How much of all logs of a node is told at once (characters): the server's requests have a limit."""

NOTHING, NOT_KEPT = "it has written nothing", "nobody keeps what it writes"


def logs(
    ranks: Collection[int], output: Callable[[int], tuple[bytes, bytes] | None], secrets: Collection[str]
) -> list[Stack]:
    """The end of each worker's log.

    Args:
        ranks: whose (global ranks).
        output: returns the last bytes of what a rank has written; see `Workers.output`.
        secrets: what must not be told.
    """
    most = min(MOST, MOST_OF_ALL // max(1, len(ranks)))
    return [_log(rank, output(rank), secrets, most) for rank in ranks]


def _log(rank: int, output: tuple[bytes, bytes] | None, secrets: Collection[str], most: int) -> Stack:
    if output is None:
        return Stack(rank=rank, why=NOT_KEPT)
    text, stderr = (sendable(concealed(plain_text(stream), secrets)).rstrip() for stream in output)
    if not text and not stderr:
        return Stack(rank=rank, why=NOTHING)
    return Stack(rank=rank, text=text, stderr=stderr).shortened(About.LOGS, most)
