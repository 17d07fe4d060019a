"""Sends one request to several servers: tries each, follows redirects, does not wait for one that hangs."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from urllib.parse import urljoin, urlsplit

import httpx

from hetrdzv.auth.tls import ClientTls
from hetrdzv.client.explain import MaybeDone, transport_error, unusable, verdict
from hetrdzv.client.urls import normal_url
from hetrdzv.protocol.errors import HetError, Unavailable

SILENCE_S = 1.0
"""With several servers: when an answer is this late, the others are asked as well (seconds)."""

Send = Callable[[str], Coroutine[None, None, httpx.Response]]
"""Sends a request to the server at a URL."""


class Servers:
    """The servers that a client may ask.

    Attributes:
        urls: normalised, without duplicates.
        last: the one that answered last; it is asked first next time.
    """

    def __init__(self, urls: Sequence[str], tls: ClientTls) -> None:
        self.urls: tuple[str, ...] = tuple(urls)
        self.last = self.urls[0]
        self._tls = tls
        self._answered: set[str] = set()

    async def ask(
        self, send: Send, limits: httpx.Timeout, *, silence_s: float | None, once: bool
    ) -> httpx.Response:
        """The first usable answer: first from the server that answered last, then the others in random order.

        Args:
            silence_s: ask the others too after this long without an answer, since a server may hang; and again
                every `SILENCE_S`, since they may not know its successor yet (seconds). None: wait.
            once: do not ask another server if one may have acted on the request already.
        """
        others = [server for server in self.urls if server != self.last]
        queue = deque([self.last, *random.sample(others, len(others))])
        failures: dict[str, HetError] = {}
        ask_again: set[str] = set()  # those that answered: next time they may point to a new leader
        asked: dict[asyncio.Task[httpx.Response], str] = {}
        try:
            while queue or asked:
                if queue:
                    server = queue.popleft()
                    if server in failures or server in asked.values():
                        continue
                    asked[asyncio.ensure_future(send(server))] = server
                done, _ = await asyncio.wait(asked, timeout=silence_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    silence_s = SILENCE_S
                    if not queue:
                        queue.extend(ask_again & failures.keys())
                        failures = {s: error for s, error in failures.items() if s not in ask_again}
                for task in done:
                    server = asked.pop(task)
                    try:
                        response = task.result()
                    except httpx.TransportError as error:
                        before = server in self._answered
                        failures[server] = transport_error(
                            error, server, limits, self._tls, answered_before=before
                        )
                        unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                    else:
                        self._answered.add(server)
                        failure = unusable(response, server) or self._redirected(response, server, queue)
                        if failure is None:
                            self.last = server
                            return response
                        failures[server] = failure
                        ask_again.add(server)
                        unsent = not isinstance(failure, MaybeDone)
                    if once and not unsent:
                        queue.clear()
        finally:
            for task in asked:
                if task.done() and not task.cancelled():
                    task.exception()  # marks it as seen; nobody needs it any more
                task.cancel()
        raise verdict({server: failures[server] for server in self.urls if server in failures})

    def _redirected(self, response: httpx.Response, server: str, queue: deque[str]) -> Unavailable | None:
        """Put the server that a redirect points to first in the queue; None: the answer is no redirect."""
        if not 300 <= response.status_code < 400:
            return None
        location = urlsplit(urljoin(server, response.headers.get("Location", "")))
        try:
            target = normal_url(f"{location.scheme}://{location.netloc}")
        except ValueError:
            return Unavailable("points to another server, but not with a URL that could be followed")
        if response.status_code != 307 or target not in self.urls:
            return Unavailable(
                f"points to {target}, which is not among the servers given: add it to --server"
            )
        queue.appendleft(target)
        return Unavailable(f"points to {target}")
