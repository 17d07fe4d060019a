"""Snapshots in hetctl, with a real hetserver: what there is, why one is not complete, and a person's choice."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from click.testing import CliRunner

from hetrdzv.cli import hetctl
from hetrdzv.cli.hetctl.describe import snapshots_table
from hetrdzv.cli.hetctl.tables import lines
from hetrdzv.client import Client
from hetrdzv.protocol.requests import JoinRequest, SpecFields
from hetrdzv.protocol.routes import Routes
from hetrdzv.protocol.snapshots import (
    HeldSnapshot,
    Holdings,
    SnapshotId,
    SnapshotShown,
    SnapshotsRequest,
    SnapshotsShown,
)
from tests.support.servers import Hetserver


@pytest.fixture(scope="module")
def server() -> Iterator[Hetserver]:
    with Hetserver() as running:
        asyncio.run(hold(running.url))
        yield running


async def hold(url: str) -> None:
    """A group of one node that holds snapshots, and one of a node that holds none."""
    async with Client([url]) as client:
        for group in ("bert", "plain"):
            spec = SpecFields(last_call_s=0, lease_s=600, max_nodes=1)
            request = JoinRequest(
                incarnation="1",
                slots=1,
                address="127.0.0.1",
                port=4000,
                spec=spec,
                snapshots=Holdings(key="secret") if group == "bert" else None,
            )
            start = (await client.join(group, "gpu1", request)).start
            assert start is not None
            held = [
                HeldSnapshot(round=1, step=step, world_size=1, whole=step < 30, size=2_500_000_000)
                for step in (10, 20, 30)
            ]
            if start.origin is not None:
                holdings = Holdings(origin=start.origin, port=7000, key="secret", held=tuple(held))
                body = SnapshotsRequest(incarnation="1", round=1, holdings=holdings)
                await client.ask(Routes.declare_snapshots, group, "gpu1", body)


def shown(server: Hetserver, *argv: str, status: int = 0) -> str:
    result = CliRunner().invoke(hetctl.cli, [*argv, "--server", server.url])
    assert result.exit_code == status
    assert "secret" not in result.output
    return " ".join(result.output.split())


def test_snapshots_are_listed_and_one_is_chosen(server: Hetserver) -> None:
    assert (
        "STEP ROUND SIZE NODES NOTE "
        "30 1 2.5 GB gpu1 no node has all that its ranks have alike "
        "20 1 2.5 GB gpu1 the next round begins here 10 1 2.5 GB gpu1 -"
    ) in shown(server, "describe", "bert")
    refused = shown(server, "restart", "bert", "--from", "30", status=1)
    assert refused == (
        "Error: group 'bert' has no complete snapshot of step 30; there are those of step 20, 10"
    )
    assert "group 'bert' restarts" in shown(server, "restart", "bert", "--from", "10")
    described = shown(server, "describe", "bert")
    assert "10 1 2.5 GB gpu1 the next round begins here, as chosen with restart --from" in described
    assert "step 10 is safe (gpu1)" in described
    reply = json.loads(shown(server, "describe", "bert", "--json"))["snapshots"]
    assert (reply["next"], reply["wanted"]) == ({"round": 1, "step": 10, "origin": None}, True)


def test_what_is_not_copied_yet_is_not_all_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # no line is folded
    newest, older = SnapshotId(round=1, step=20), SnapshotId(round=1, step=10)
    kept = tuple(SnapshotShown(stamp=stamp, world_size=2, sharded=True) for stamp in (newest, older))

    def notes(safe: SnapshotId | None) -> list[str]:
        reply = SnapshotsShown(group_id="bert", next=newest, safe=safe, snapshots=kept)
        return [line.split("nobody")[1].strip() for line in lines(snapshots_table(reply))[1:]]

    here = "the next round begins here"
    assert notes(newest) == [here, "-"]
    assert notes(older) == [here, f"{here} if a node is lost"]
    assert notes(None) == [f"{here}; or anew if a node is lost", "-"]
    kept = (replace(kept[0], lack="a part is gone"), *kept)  # memory lacks a part that the disk has
    assert notes(newest)[:2] == ["a part is gone", here]
