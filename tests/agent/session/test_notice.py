"""A round that is about to end: the agent hears of it once, and the server of what the workers say to it."""

from dataclasses import replace

import pytest
from tests.agent.session.driver import Bench

from hetagent.session.requests import REPORT
from hetrdzv.core import commands
from hetrdzv.protocol.requests import SpecFields

SPEC = SpecFields(min_nodes=1, max_nodes=1, lease_s=600.0, max_disconnect_s=60.0, notice_s=30.0)


def restart(bench: Bench) -> None:
    """A person asks for it; time for a poll."""
    bench.do(commands.Restart())
    bench.run(0.2)


@pytest.fixture
def noticed() -> Bench:
    """A node whose workers run in round 1, and whose agent has been told that this is about to end."""
    bench = Bench(spec=SPEC)
    bench.session.offer = replace(bench.session.offer, takes_notice=True)
    bench.started()
    restart(bench)
    return bench


def test_it_is_told_once_and_the_round_goes_on_until_the_workers_are_ready(noticed: Bench) -> None:
    bench = noticed
    assert bench.kinds == [("start", 1), ("start", 1)]
    assert bench.last.notice is not None
    assert (bench.last.notice.kind, round(bench.last.notice.left_s)) == ("restarted", 30)
    bench.run(10.0)
    assert len(bench.told) == 2
    bench.reports("ready_to_stop")
    bench.pump()
    assert bench.kinds[2:] == [("stop", 1)]


def test_it_reaches_the_server_although_replies_are_lost(noticed: Bench) -> None:
    bench = noticed
    bench.away()
    bench.reports("ready_to_stop")
    bench.run(5.0)
    bench.away(None)
    bench.run(5.0)
    assert bench.kinds[2:] == [("stop", 1)]
    told = [one.body.kind for one in bench.reports_on(REPORT)]
    assert told.count("ready_to_stop") > 1
