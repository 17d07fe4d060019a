"""The whole server without sockets, in virtual time: waiting costs nothing, and leases expire."""

from typing import Any, Self

import httpx

from hetrdzv.api.app import create_app
from hetrdzv.service.clock import ServedClock
from hetrdzv.service.metrics import Metrics
from hetrdzv.service.service import Service
from tests.sim.loop import ServerLoop
from tests.sim.timeline import Timeline
from tests.support.served import FaultyStore


class VirtualServer:
    """The application over a service that can be replaced by a new one, on an event loop of its own.

    Requests are made one after the other, from outside of the loop; time passes while they wait.

    Args:
        settings: of the service.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._timeline = Timeline()
        self._loop = ServerLoop(self._timeline, lambda: None)
        self._replica = self._new_replica()
        self._metrics = Metrics()
        self.app: Any = create_app(_Current(self), metrics=self._metrics)
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://localhost")
        self._loop.run_until_complete(self._replica.start())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._client.aclose())
        self._loop.run_until_complete(self._replica.close())
        self._loop.kill()

    @property
    def replica(self) -> Service:
        """The present service."""
        return self._replica

    def forget(self) -> None:
        """Start over with an empty store."""
        self._loop.run_until_complete(self._replica.close())
        self._replica = self._new_replica()
        self._loop.run_until_complete(self._replica.start())

    def send(self, method: str, url: str, **request: Any) -> httpx.Response:
        """The reply to a request."""
        return self._loop.run_until_complete(self._client.request(method, url, **request))

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and everything happen that is due."""
        passed = self._loop.create_future()
        self._loop.call_later(seconds, passed.set_result, None)
        self._loop.run_until_complete(passed)

    def stand_still(self, seconds: float) -> None:
        """Let this process be late for a while."""
        self._timeline.at(seconds, self._loop.freeze, seconds)
        self.pass_time(3 * seconds)

    def forget_commits(self) -> None:
        """Drop what the store remembers for tests."""
        self._store.commits.clear()

    def _new_replica(self) -> Service:
        self._store = FaultyStore()
        return Service(self._store, lambda base: ServedClock(base, self._loop.time), **self._settings)


class _Current:
    """A replica with the present service, so that the application is made only once, which takes longest."""

    def __init__(self, server: VirtualServer) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server.replica, name)
