"""The thread around a session, under real servers; runloop/test_member.py has a master that is reached late."""

import asyncio
import signal
import time
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import pytest
from tests.agent.rig import Make, OtherNode, soon
from tests.support.servers import Hetserver

from hetagent.session import preflight
from hetagent.session.requests import Report
from hetrdzv.client.client import Client
from hetrdzv.protocol.routes import Routes


def test_a_stop_overtakes_a_start_whose_master_does_not_answer(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[bool] = []

    async def silence(address: str, port: int) -> str | None:
        try:
            await asyncio.sleep(600)
        finally:
            cancelled.append(True)
        return None

    monkeypatch.setattr(preflight, "find_connect_error", silence)
    spec = {"min_nodes": 2, "max_nodes": 2, "lease_s": 60.0, "stop_timeout_s": 5.0}
    made = rig("touch up", **spec)
    master = OtherNode(made, "0", **spec)
    starts = lambda: soon(lambda: made.group()["state"] == "starting", "a round")  # noqa: E731
    assert made.run(master.ready, starts, lambda: time.sleep(0.3), made.asks("cancel")) == 3
    assert cancelled
    assert not (made.folder / "up").exists()


def test_whoever_is_in_a_hurry_does_not_wait_for_a_server_that_is_away(rig: Make) -> None:
    """A failover may be under way, so it is waited for long, and said; a second Ctrl-C ends that."""
    begun: list[float] = []
    with Hetserver() as server:
        made = rig("touch up; exec sleep 100", url=server.url, stop_timeout_s=1.0)
        acts = [made.appears("up"), server.kill, made.gets(signal.SIGINT)]
        acts += [
            made.says("for at most 8 s; a second signal ends that"),
            lambda: begun.append(time.monotonic()),
        ]
        assert made.run(*acts, made.gets(signal.SIGINT)) is None
    assert time.monotonic() < begun[0] + 4.0


def test_what_is_asked_as_the_thread_ends_is_not_waited_for_for_ever(rig: Make, server: Hetserver) -> None:
    made = rig("exit 0")
    answers: list[Future[Any]] = []

    class LateClient(Client):
        async def __aexit__(self, *error: object) -> None:
            answers.append(made.line.ask(Report(Routes.declare_snapshots, Mock())))
            await super().__aexit__(*error)

    made.line._make_client = lambda: LateClient([server.url])
    assert made.run() == 0
    assert answers[0].cancelled()
