"""What hetserver logs: what happens to groups and who is refused, a line each, never a token."""

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hetrdzv.api import errors
from hetrdzv.api.errors import MAX_LOGGED_REFUSALS, REFUSAL_LOG_INTERVAL_S, RefusalLog
from hetrdzv.cli.logs import MAX_QUEUED_LINES, JsonFormatter, TextFormatter, logging_to_stderr
from hetrdzv.core.commands import Cancel, Leave
from hetrdzv.protocol.errors import Unauthorized
from tests.server.test_hetserver import ask
from tests.support.cluster import wait_for
from tests.support.failover import get
from tests.support.served import api, join, serving, two_nodes
from tests.support.servers import ROOT, Hetserver, free_port

TOKEN = "the-token-of-the-server"

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (INFO|WARNING|ERROR) hetserver: (.+)")


def said(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    """What the server has logged, at a level or above."""
    return [one.getMessage() for one in caplog.records if one.levelno >= level and "hetrdzv" in one.name]


# -- what happens to groups ----------------------------------------------------------------------------------


async def test_a_whole_job_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hetrdzv")
    async with serving() as (service, _):
        await two_nodes(service)
        await service.execute("g", Leave(node_id="a", incarnation="1", why="its agent got SIGINT"))
        await service.execute("g", Cancel("an admin at 10.0.0.9"))
        await service.execute("g", Leave(node_id="b", incarnation="1"))
        await service.delete("g")
        await asyncio.sleep(0)
    lines = said(caplog)
    assert lines[0] == "group 'g': a joined with 1 slot at 10.0.0.1"
    assert "group 'g': round 1 formed: world size 2, a rank 0, b rank 1" in lines
    assert "group 'g': round 1 runs on 2 nodes, world size 2" in lines
    assert "group 'g': a left: its agent got SIGINT" in lines
    assert "group 'g': the job was cancelled by an admin at 10.0.0.9" in lines
    assert lines[-1] == "group 'g': the group was removed"


async def test_many_joins_at_once_are_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hetrdzv")
    async with serving() as (service, _):
        joins = (service.execute("g", join(f"n{number}", min_nodes=100)) for number in range(50))
        await asyncio.gather(*joins)
    assert [line for line in said(caplog) if "joined" in line] == [
        "group 'g': n0 joined with 1 slot at 10.0.0.1; and 49 more (node_joined)"
    ]


# -- who is refused ------------------------------------------------------------------------------------------


async def test_a_wrong_token_is_logged_once_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "hetrdzv")
    async with serving() as (service, _), api(service, token=TOKEN) as client:
        for _ in range(5):
            wrong = {"Authorization": "Bearer the-wrong-one"}
            assert (await client.get("/v1/groups/g", headers=wrong)).status_code == 401
    (line,) = said(caplog, logging.WARNING)
    assert line.startswith("refused GET /v1/groups/g from 127.0.0.1: this server does not accept the token")
    assert not any(word in text for text in said(caplog, 0) for word in (TOKEN, "the-wrong-one"))


def test_what_is_refused_again_and_again_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "hetrdzv")
    now = [0.0]
    monkeypatch.setattr(errors, "monotonic", lambda: now[0])
    refusals = RefusalLog()

    def refuse(client: str = "10.0.0.1") -> None:
        refusals.log(Unauthorized("no"), {"client": (client, 1), "method": "GET", "path": "/v1/groups"})

    for _ in range(4):
        refuse()
    refuse("10.0.0.2")
    assert said(caplog) == [f"refused GET /v1/groups from 10.0.0.{host}: no" for host in (1, 2)]
    now[0] += REFUSAL_LOG_INTERVAL_S
    refuse()
    assert said(caplog)[2:] == ["refused GET /v1/groups from 10.0.0.1: no"]
    for number in range(3 * MAX_LOGGED_REFUSALS):
        refuse(f"10.1.{number >> 8}.{number & 255}")
    assert len(said(caplog)) == 2 + MAX_LOGGED_REFUSALS


# -- the lines -----------------------------------------------------------------------------------------------


def record(message: str, **more: object) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": message, "levelname": "INFO", "name": "hetrdzv.x", **more})


def test_what_a_client_has_sent_or_a_traceback_cannot_be_taken_for_lines_of_the_log() -> None:
    forged = "x\n2026-01-01 00:00:00.000 ERROR hetserver: forged\x1b[0m"
    line = TextFormatter().format(record(f"a left: {forged}"))
    assert "\n" not in line
    assert "\x1b" not in line
    assert len(TextFormatter().format(record("x" * 10_000))) < 2_100
    try:
        raise ValueError(forged)
    except ValueError:
        text = TextFormatter().format(record("a bug", exc_info=sys.exc_info()))
    first, *trace = text.split("\n")
    assert LINE.fullmatch(first)
    assert trace[-1].endswith("forged\\x1b[0m")
    assert all(line.startswith("    ") for line in trace)


def test_a_line_of_json_has_the_facts() -> None:
    facts = {"group": "g", "event": "node_joined"}
    found = json.loads(JsonFormatter().format(record("a joined", facts=facts)))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]{12}[+-]\d\d:\d\d", found.pop("time"))
    assert found == {"level": "info", "logger": "hetrdzv.x", "message": "a joined", **facts}


def test_lines_of_a_real_server(tmp_path: Path) -> None:
    for style in ("text", "json"):
        with Hetserver("memory", 0, None, "--log-format", style) as server:
            spec = {"max_nodes": 1}
            body = {"incarnation": "1", "slots": 1, "address": "10.0.0.1", "port": 1, "spec": spec}
            ask(server, "PUT", "/v1/groups/g/nodes/a", body)
            wait_for(lambda: "round 1 formed" in server.log, "the log said it")
            lines = server.log.splitlines()
        if style == "text":
            assert all(LINE.fullmatch(line) for line in lines), lines
        else:
            formed = [one for one in map(json.loads, lines) if one.get("event") == "round_formed"]
            assert formed[0]["group"] == "g"
            assert formed[0]["round"] == 1


def test_a_reader_that_stalls_does_not_stop_the_server(tmp_path: Path) -> None:
    """More is logged than a pipe holds."""
    server: Any = SimpleNamespace(port=free_port())
    flags = ["--port", str(server.port), "--store", "memory", "--stop-at-eof"]
    command = [sys.executable, "-m", "hetrdzv.cli.hetserver", *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "rendezvous"), "XDG_STATE_HOME": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        try:
            wait_for(lambda: get(server, "/healthz")[0] == 200, "it answered")
            for number in range(600):
                group = f"{'g' * 100}{number}"
                ask(server, "PUT", f"/v1/groups/{group}", {"min_nodes": 2})
                ask(server, "POST", f"/v1/groups/{group}/cancel")
            assert len(ask(server, "GET", "/v1/groups")["groups"]) == 600
        finally:
            process.terminate()
            assert process.stderr is not None
            logged = process.stderr.read()
    assert len(logged) > 1 << 17


def test_the_last_lines_are_written_though_as_many_wait_as_may(capfd: pytest.CaptureFixture[str]) -> None:
    with logging_to_stderr("info", "text"):
        for number in range(MAX_QUEUED_LINES + 100):
            logging.getLogger("hetrdzv.x").info("line %d", number)
    assert "Traceback" not in (written := capfd.readouterr().err)
    assert len(written.splitlines()) >= MAX_QUEUED_LINES
