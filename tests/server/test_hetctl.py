"""hetctl with a real hetserver: output, errors, exit statuses."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import httpx
import pytest
from click.testing import CliRunner

from hetrdzv.cli import hetctl
from hetrdzv.cli.hetctl import printing, wait
from hetrdzv.cli.hetctl.describe import (
    TRACEBACK_LINES,
    Description,
    description_view,
    groups_view,
    snapshots_table,
)
from hetrdzv.cli.hetctl.history import rounds_view
from hetrdzv.protocol import codec
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.replies import RECENTLY_FINISHED_S, GroupReply, GroupsReply, GroupSummary, WorkerReply
from hetrdzv.protocol.rounds import RoundRecord, RoundsReply
from hetrdzv.protocol.snapshots import SnapshotId, SnapshotListReply, SnapshotReply
from tests.support.servers import ROOT, Hetserver

LONG = "node003.rack12.cluster.example.com"
TRACEBACK = "Traceback (most recent call last):\n" + "".join(
    f'  File "/work/m{i}.py", line 3, in f\n' for i in range(30)
)


@pytest.fixture(scope="module")
def server() -> Iterator[Hetserver]:
    with Hetserver() as running:
        yield running


@pytest.fixture(autouse=True)
def environment(server: Hetserver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "HET_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HET_SERVER", server.url)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "rendezvous"))


@pytest.fixture
def ctl() -> Callable[..., str]:
    """Runs hetctl in this process; returns its stdout on success, else its stderr."""

    def run(*argv: str, status: int = 0) -> str:
        result = CliRunner().invoke(hetctl.hetctl_group, argv, prog_name="hetctl")
        assert result.exit_code == status, result.output
        assert (result.stdout if status else result.stderr) == ""
        return result.stderr if status else result.stdout

    return run


class Job:
    """Plays the agents of a group over the API."""

    def __init__(self, url: str, group: str, **spec: Any) -> None:
        self.url, self.group = url, group
        self.ask("PUT", "", {"last_call_s": 0, "lease_s": 600, **spec})

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        url = f"{self.url}/v1/groups/{self.group}{path}"
        reply = httpx.request(method, url, json=body, trust_env=False, timeout=30).raise_for_status()
        return reply.json() if reply.content else None

    def join(self, node: str, slots: int, address: str, **more: Any) -> Any:
        offer = {"incarnation": f"{node}-1", "slots": slots, "address": address, "port": 40_001}
        return self.ask("PUT", f"/nodes/{node}", offer | more)

    def report(self, node: str, kind: str, number: int = 1, **more: Any) -> None:
        report = {"incarnation": f"{node}-1", "round": number, "kind": kind}
        self.ask("POST", f"/nodes/{node}/report", report | more)

    def leave(self, node: str, reason: str) -> None:
        self.ask("DELETE", f"/nodes/{node}?incarnation={node}-1&reason={quote(reason)}")

    def until(self, state: str) -> GroupReply:
        for _ in range(200):
            found = self.ask("GET", "")
            if found["state"] == state:
                return codec.parse_json(GroupReply, json.dumps(found), unknown="ignore")
            time.sleep(0.02)
        raise AssertionError(f"the group is {found['state']}: {found['reason']}")

    def polls(self, node: str, wait_s: float) -> Any:
        """Poll as an agent does whose workers have made some progress, until it is asked something."""
        known = self.ask("GET", f"/nodes/{node}/directive?incarnation={node}-1")["version"]
        body = {"incarnation": f"{node}-1", "wait_s": wait_s, "after": known}
        workers = [{"rank": 3 if node == "gpu1" else 9}]
        return self.ask(
            "POST", f"/nodes/{node}/directive", body | {"progress": {"round": 1, "workers": workers}}
        )

    def run(self) -> None:
        """Two members with 8 and 4 slots run; a spare waits."""
        self.join("gpu1", 8, "10.0.0.11")
        self.join(LONG, 4, "192.168.100.103")
        self.until("starting")
        self.join("spare1", 2, "10.0.0.14")
        for node in ("gpu1", LONG):
            self.report(node, "started")
        self.until("running")

    def fail(self) -> None:
        """A worker of gpu1 fails, with no restart left."""
        message = f"{TRACEBACK}\x1b[31mRuntimeError\x1b[0m: [bold]out[/bold] of memory\x1b]0;evil\x07\n"
        failure = {"local_rank": 3, "rank": 3, "exit_code": 1, "message": message}
        self.report("gpu1", "failed", failure=failure, age_s=0.1)
        self.join("gpu1", 8, "10.0.0.11", after_round=1)
        self.join(LONG, 4, "192.168.100.103", after_round=1)
        self.until("failed")


@pytest.fixture
def job(server: Hetserver, request: pytest.FixtureRequest) -> Job:
    """A group named after the test that wants two nodes."""
    name = re.sub("[^A-Za-z0-9]+", "-", request.node.name).strip("-")
    return Job(server.url, name, min_nodes=2, max_nodes=2, max_restarts=0)


def rows(text: str, header: str) -> list[list[str]]:
    """The rows of the table whose heading starts so, split at two or more blanks."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(header))
    end = next((i for i in range(start, len(lines)) if not lines[i]), len(lines))
    return [re.split(" {2,}", line) for line in lines[start + 1 : end]]


# -- each command --------------------------------------------------------------------------------------------


def test_create_sends_the_given_fields_only(ctl: Callable[..., str], server: Hetserver) -> None:
    flags = "--nnodes 2:4 --on-join spare --lease-s 4.5 --no-restart-on 2,64 -- train.py --lr 0.1 --json"
    said = ctl("create", "made", *flags.split())
    assert said == "group 'made' exists and is waiting: no node is ready; waiting for 2 more\n"
    spec = json.loads(ctl("get", "made", "--json"))["spec"]
    assert (spec["min_nodes"], spec["max_nodes"], spec["on_join"]) == (2, 4, "spare")
    assert (spec["max_restarts"], spec["lease_s"], spec["no_restart_on"]) == (3, 4.5, [2, 64])
    assert spec["command"] == ["train.py", "--lr", "0.1", "--json"]
    ctl("create", "made", "--nnodes", "2:4")
    assert "max_restarts=3, and max_restarts=9" in ctl("create", "made", "--max-restarts", "9", status=1)


def test_create_takes_world_sizes(ctl: Callable[..., str]) -> None:
    ctl("create", "sized", "--world-size", "8:16", "--world-size-multiple", "4")
    spec = json.loads(ctl("get", "sized", "--json"))["spec"]
    assert (spec["min_world_size"], spec["max_world_size"], spec["world_size_multiple"]) == (8, 16, 4)
    assert "settings  min_world_size=8, max_world_size=16, world_size_multiple=4\n" in ctl("get", "sized")
    for wrong in ("0", "9:8", ":", "", "1:2:3", "x"):
        assert "--world-size" in ctl("create", "none", "--world-size", wrong, status=2)


def test_status_and_events_of_a_group(ctl: Callable[..., str], job: Job) -> None:
    job.run()
    text = ctl("get", job.group)
    heading = dict(line.split("  ", 1) for line in text.split("\n\n")[0].splitlines())
    assert {name: value.strip() for name, value in heading.items()} == {
        "group": job.group,
        "state": "running",
        "why": "round 1 runs on 2 nodes, world size 12",
        "job": "1",
        "round": "1 (world size 12, 2 nodes)",
        "restarts": "0 of 0",
        "master": "gpu1 at 10.0.0.11 port 40001",
        "nodes": "3 here, 2 in the round, 1 spare",
        "settings": "min_nodes=2, max_nodes=2, max_restarts=0, last_call_s=0, lease_s=600",
    }
    assert [row[:5] for row in rows(text, "NODE")] == [
        ["gpu1", "running", "0-7", "8", "10.0.0.11"],
        [LONG, "running", "8-11", "4", "192.168.100.103"],
        ["spare1", "spare", "-", "2", "10.0.0.14"],
    ]
    assert all(re.fullmatch(r"0 s|< 0.1 s|\d+\.\d s", row[5]) for row in rows(text, "NODE"))
    assert json.loads(ctl("--json", "get", job.group))["nodes"][0]["node_id"] == "gpu1"
    lines = ctl("events", job.group).splitlines()
    assert re.fullmatch(rf"   1  20\d\d-\d\d-\d\d \d\d:\d\d:\d\d  group '{job.group}' was created", lines[0])
    assert ctl("events", job.group, "--after", "2").splitlines() == lines[2:]
    assert ctl("events", job.group, "--after", "999") == ""
    assert len(json.loads(ctl("events", job.group, "--json"))["events"]) == len(lines)


def test_of_many_nodes_and_workers_those_are_shown_that_need_attention(job: Job) -> None:
    job.run()
    reply = job.until("running")
    assert reply.current_round is not None
    nodes = [
        replace(reply.nodes[0], node_id=f"n{number}", state="suspect" if number == 90 else "running")
        for number in range(100)
    ]
    workers = [
        WorkerReply(
            rank=rank,
            node_id=f"n{rank}",
            idle_s=9.0,
            waiting=0.5 if rank != 80 else 0.0,
            state={70: "waited for", 80: "runs"}.get(rank, "waits"),
        )
        for rank in range(100)
    ]
    current = replace(reply.current_round, workers=tuple(workers))
    found = Description(group=replace(reply, nodes=nodes, current_round=current), rounds=(), events=())
    text = "\n".join(printing.render_lines(*description_view(found)))
    assert "n90" in [row[0] for row in rows(text, "NODE")]
    assert "and 36 more nodes (all: --json)\n" in text
    ranks = rows(text, "RANK")
    assert [row[1:4] for row in ranks[:3]] == [
        ["70", "n70", "waited for"],
        ["80", "n80", "runs"],
        ["0", "n0", "waits"],
    ]
    assert "and 36 more workers (all: --json)\n" in text


def test_a_failed_group_shows_what_to_do_the_root_cause_and_its_history(
    ctl: Callable[..., str], job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ctl("history", job.group) == "no round has formed yet\n"
    job.run()
    job.fail()
    for command in ("get", "describe"):
        text = ctl(command, job.group)
        heading, cause = text.split("\n\n")[:2]
        assert heading.splitlines()[1:4] == [
            "state     failed",
            "why       RuntimeError: [bold]out[/bold] of memory (m29.py:3, rank 3 on gpu1)",
            f"next      to begin again: hetctl restart {job.group}, then start hetagent again",
        ]
        lines = cause.splitlines()
        assert lines[0] == "root cause: node gpu1, rank 3 (local rank 3), exit code 1, round 1"
        assert lines[1] == "  … 12 lines before (all: --json)"
        assert lines[-1] == "  RuntimeError: [bold]out[/bold] of memory"
        assert len(lines) == 2 + TRACEBACK_LINES
        assert "\x1b" not in text
        assert "rank 3: exit code 1" in text.split("\n\n")[2]
    text = ctl("history", job.group)
    (row,) = rows(text, "ROUND")
    assert (row[0], row[2]) == ("1", "12")
    assert row[-1] == "RuntimeError: [bold]out[/bold] of memory (m29.py:3, rank 3 on gpu1)"
    (row,) = rows(ctl("history", job.group, "--wide"), "ROUND")
    assert row[10] == "failed"
    assert row[11] == "RuntimeError: [bold]out[/bold] of memory (m29.py:3, rank 3 on gpu1)"
    assert re.search(r"^1 round; (trained|how much was training)", text, re.MULTILINE)
    reply = json.loads(ctl("history", job.group, "--json"))
    assert (reply["rounds"][0]["ended_by"], reply["rounds"][0]["is_last"]) == ("failed", True)
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    with process("get", job.group) as running:
        code, out, err = ended(running)
    assert (code, err) == (0, "")
    assert "  ? 12 lines before" in out


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_nothing_is_cut_off_at_any_width(
    ctl: Callable[..., str], job: Job, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    job.run()
    job.ask("POST", f"/nodes/{LONG}/drain")
    job.leave("spare1", "its agent got SIGTERM from a scheduler that wanted the machine for something else")
    monkeypatch.setenv("COLUMNS", str(columns))
    text = ctl("get", job.group) + ctl("get")
    assert "…" not in text
    for cell in ("192.168.100.103", "stopping", "10.0.0.14"):
        assert cell in text
    first = "".join(
        line.split("  ")[0].strip() for line in ctl("get", job.group).split("\n\n")[1].splitlines()
    )
    assert LONG in first
    if columns >= 80:
        assert max(map(len, text.splitlines())) <= columns


def test_restart_drain_undrain_cancel_delete_say_what_happened(ctl: Callable[..., str], job: Job) -> None:
    job.run()
    name = job.group
    said = ctl("restart", name)
    assert said.startswith(f"group '{name}' restarts and is waiting: workers of gpu1, {LONG} have to stop")
    assert "; round 1 ended (a restart was" in said
    assert ctl("drain", name, "gpu1").startswith(f"node 'gpu1' is drained; group '{name}' is waiting: ")
    assert "drained   gpu1\n" in ctl("get", name)
    assert ctl("undrain", name, "gpu1").startswith(f"node 'gpu1' may join group '{name}' again")
    said = ctl("delete", name, status=1)
    assert " still has nodes (" in said
    assert said.endswith(f"): hetctl cancel {name} ends its job\n")
    assert ctl("cancel", name).startswith(f"group '{name}' is cancelled: the job was cancelled by ")
    assert ctl("delete", name) == f"group '{name}' is deleted\n"
    assert "there is no group" in ctl("get", name, status=1)


def test_a_dry_run_of_create_checks_and_makes_nothing(ctl: Callable[..., str]) -> None:
    said = ctl("create", "dry", "--dry-run", "--nnodes", "2:4", "--", "a.py")
    assert said == "group 'dry' would be created: min_nodes=2, max_nodes=4, command='a.py'\n"
    assert json.loads(ctl("create", "dry", "--dry-run", "--nnodes", "2:4", "--json"))["max_nodes"] == 4
    assert "there is no group 'dry'" in ctl("get", "dry", status=1)
    wrong = ("--world-size", "9:11", "--world-size-multiple", "4")
    said = ctl("create", "dry", "--dry-run", *wrong, status=1)
    assert "lower min_world_size to 8, or raise max_world_size to 12" in said
    ctl("create", "dry", "--nnodes", "2:4", "--no-restart-on", "2", "--", "a.py")
    same = ("create", "dry", "--dry-run", "--nnodes", "2:4", "--no-restart-on", "2", "--", "a.py")
    assert ctl(*same) == "nothing: group 'dry' exists with these settings\n"
    assert json.loads(ctl(*same[:3], "--json"))["command"] == ["a.py"]
    said = ctl("create", "dry", "--dry-run", "--max-restarts", "9", status=1)
    assert "group 'dry' exists with max_restarts=3, not 9" in said


def test_dry_runs_change_nothing(ctl: Callable[..., str], job: Job) -> None:
    job.run()
    before = job.ask("GET", "/events")["last"]
    assert ctl("drain", job.group, "gpu1", "--dry-run").splitlines() == [
        "Workers of gpu1 are stopped for good.",
        f"Workers of {LONG} are stopped and started again.",
        "Round 2 follows, with spare1 as master. World size: 12 to 6.",
    ]
    said = ctl("restart", job.group, "--dry-run")
    assert "Round 2 follows, with gpu1 as master. World size: 12, as before.\n" in said
    assert json.loads(ctl("restart", job.group, "--dry-run", "--json"))["restarted"] == ["gpu1", LONG]
    said = ctl("restart", job.group, "--dry-run", "--from", "3", status=2)
    assert "--dry-run shows nothing of --from" in said
    assert "has no node 'gpu7'" in ctl("drain", job.group, "gpu7", "--dry-run", status=1)
    assert job.ask("GET", "/events")["last"] == before


def test_what_is_about_to_happen_is_said(ctl: Callable[..., str], server: Hetserver) -> None:
    job = Job(server.url, "noticed", min_nodes=1, max_nodes=1, notice_s=600.0)
    job.join("gpu1", 8, "10.0.0.11", takes_notice=True)
    job.until("starting")
    job.report("gpu1", "started")
    about = (
        "round 1 is about to end (gpu1 is leaving: drained); waiting for gpu1 to save and be ready to stop"
    )
    said = f"node 'gpu1' is drained; group 'noticed' is running: {about}"
    assert ctl("drain", "noticed", "gpu1").startswith(said)
    assert about in ctl("get", "noticed")
    said = ctl("cancel", "noticed")
    assert said.startswith("group 'noticed' is running: round 1 is about to end (the job was cancelled")
    assert said.endswith("; to wait no longer: cancel it again\n")
    assert "cancel it again" not in ctl("cancel", "noticed")


# -- looking ---------------------------------------------------------------------------------------------------


def test_get_groups(ctl: Callable[..., str], job: Job) -> None:
    job.join("gpu0", 1, "10.0.0.9", labels={"rack": "r1"}, device={"torch": "2.13.0"})
    job.leave("gpu0", "SIGTERM")
    job.run()
    found = {row[0]: row[1:] for row in rows(ctl("get"), "GROUP")}
    assert found[job.group][:5] == ["running", "1", "12", "3", "0 of 0"]
    assert job.group in [group["group_id"] for group in json.loads(ctl("get", "--json"))["groups"]]
    gone = rows(ctl("get", job.group, "--wide"), "NODE")[3]
    assert gone[:2] == ["gpu0", "left"]
    assert gone[6:] == ["default", "torch 2.13.0 · rack=r1", "SIGTERM"]


def test_groups_come_first_that_need_attention() -> None:
    old = RECENTLY_FINISHED_S + 1
    states: dict[str, tuple[str, float | None]] = {
        "set-aside": ("quarantined", None),
        "b": ("failed", 5.0),
        "a": ("failed", 60.0),
        "waits": ("waiting", None),
        "runs-3": ("running", None),
        "runs-12": ("running", None),
        "done": ("succeeded", 7.0),
        "newer": ("pondering", None),
        "old": ("failed", old),
        "old-too": ("succeeded", old),
    }
    why = Reason(code="?", message="")
    groups = [
        GroupSummary(group_id=name, state=state, reason=why, ended_s_ago=ended_s_ago)
        for name, (state, ended_s_ago) in sorted(states.items())
    ]
    with click.Context(click.Command("get")):
        shown = [
            (line.split() or [""])[0]
            for line in printing.render_lines(*groups_view(GroupsReply(groups=tuple(groups))))
        ]
    assert [word for word in shown if word in states] == [*states]


def test_a_job_that_failed_of_a_hang_hangs_no_more() -> None:
    why = Reason(code="behind", message="")
    states = ("running", "failed", "cancelled")
    shown = [GroupSummary(group_id="g", state=state, reason=why).display_state for state in states]
    assert shown == ["hangs", "failed", "cancelled"]


def test_describe_shows_why_settings_that_differ_rounds_and_events(ctl: Callable[..., str], job: Job) -> None:
    job.run()
    job.leave(LONG, "SIGTERM")
    text = ctl("describe", job.group)
    assert text.splitlines()[2].startswith("why       workers of gpu1 have to stop")
    assert re.search(rf"^{LONG} .* SIGTERM$", text, re.MULTILINE)
    assert re.search(r"^1 round; ", text, re.MULTILINE)
    assert text.splitlines()[-1].endswith(f"round 1 ended: {LONG} left: SIGTERM")
    assert json.loads(ctl("describe", job.group, "--json"))["group"]["group_id"] == job.group


def test_a_history_fits_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    record = RoundRecord(
        number=10_000,
        formed_at="2026-07-14T10:22:33+00:00",
        world_size=10_240,
        ended_by="master_unreachable",
        reason=ReasonCode.NODE_LOST.reason(LONG, why=ReasonCode.LEASE_EXPIRED.reason(for_s=5.0)),
        time={"training": 3599.0, "hanging": 3599.0, "noticing": 3599.0, "waiting": 3600.0},
    )
    shown = printing.render_lines(*rounds_view(RoundsReply(rounds=(record,))))
    assert max(map(len, shown[:-1])) <= 80, shown
    assert any(
        len(line) > 80
        for line in printing.render_lines(*rounds_view(RoundsReply(rounds=(record,)), wide=True))
    )


def test_nothing_in_a_reply_means_anything_to_a_terminal(ctl: Callable[..., str], job: Job) -> None:
    evil = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202e"
    job.join("gpu1", 8, f"10.0.0.11{evil}", not_ready=evil, labels={"x": evil})
    for words in (
        ("describe", job.group),
        ("get", job.group, "--wide"),
        ("events", job.group),
    ):
        said = ctl(*words)
        assert "10.0.0.11red" in said or "not ready: red" in said
        assert not set("\x1b\x07\x9b\u202e") & set(said)


def test_snapshots_are_listed_and_one_is_chosen(ctl: Callable[..., str], server: Hetserver) -> None:
    job = Job(server.url, "bert", max_nodes=1)
    start = job.join("gpu1", 1, "127.0.0.1", snapshots={"key": "secret"})["start"]
    held = [
        {"round": 1, "step": step, "world_size": 1, "whole": step < 30, "size": 2_500_000_000}
        for step in (10, 20, 30)
    ]
    inventory = {"origin": start["origin"], "port": 7000, "key": "secret", "held": held}
    job.ask("POST", "/nodes/gpu1/snapshots", {"incarnation": "gpu1-1", "round": 1, "inventory": inventory})
    described = ctl("describe", "bert")
    assert (
        "STEP ROUND SIZE NODES NOTE "
        "30 1 2.5 GB gpu1 no node has the complete replicated state "
        "20 1 2.5 GB gpu1 the next round begins here 10 1 2.5 GB gpu1 -"
    ) in " ".join(described.split())
    refused = "group 'bert' has no complete snapshot of step 30; there are those of step 20, 10"
    assert refused in ctl("restart", "bert", "--from", "30", status=1)
    assert "group 'bert' restarts" in ctl("restart", "bert", "--from", "10")
    described += ctl("describe", "bert")
    assert "the next round begins here, as chosen with restart --from" in described
    assert "step 10 is safe (gpu1)" in described
    as_json = ctl("describe", "bert", "--json")
    reply = json.loads(as_json)["snapshots"]
    assert (reply["next"], reply["wanted"]) == ({"round": 1, "step": 10, "origin": None}, True)
    assert "secret" not in described + as_json


def test_what_is_not_copied_yet_is_not_all_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # no line is folded
    newest, older = SnapshotId(round=1, step=20), SnapshotId(round=1, step=10)
    kept = tuple(SnapshotReply(stamp=stamp, world_size=2, sharded=True) for stamp in (newest, older))

    def notes(safe: SnapshotId | None) -> list[str]:
        reply = SnapshotListReply(group_id="bert", next=newest, safe=safe, snapshots=kept)
        return [line.split("nobody")[1].strip() for line in printing.render_lines(snapshots_table(reply))[1:]]

    here = "the next round begins here"
    assert notes(newest) == [here, "-"]
    assert notes(older) == [here, f"{here} if a node is lost"]
    assert notes(None) == [f"{here}; or anew if a node is lost", "-"]
    kept = (replace(kept[0], lack="a part is gone"), *kept)  # memory lacks a part that the disk has
    assert notes(newest)[:2] == ["a part is gone", here]


def test_wait_returns_when_the_group_is_there(ctl: Callable[..., str], job: Job) -> None:
    with process("wait", job.group, "--for", "running", "--timeout", "60") as waiting:
        job.run()
        running = f"group '{job.group}' is running: round 1 runs on 2 nodes, world size 12\n"
        assert ended(waiting) == (0, running, "")
    assert ctl("wait", job.group, "--for", "running", "--timeout", "0") == running
    said = ctl("wait", job.group, "--for", "ended", "--timeout", "0.01", status=3)
    assert said == f"hetctl: group '{job.group}' is not ended after 0.01 s: hetctl describe {job.group}\n"
    job.fail()
    assert ctl("wait", job.group, "--for", "ended").startswith(f"group '{job.group}' has failed: RuntimeErr")
    assert ctl("wait", job.group, "--for", "failed")
    said = ctl("wait", job.group, "--for", "succeeded", status=4)
    assert said.startswith(f"hetctl: group '{job.group}' has failed: RuntimeError: ")


def test_wait_for_a_group_that_is_not_there_yet_and_then_is_deleted_or_until_ctrl_c(job: Job) -> None:
    name = f"{job.group}-doomed"
    with process("wait", name, "--for", "succeeded") as waiting:
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == f"hetctl: there is no group '{name}' yet: waiting for it\n"
        doomed = Job(job.url, name)
        time.sleep(4 * wait.POLL_INTERVAL_S)
        doomed.ask("DELETE", "")
        assert ended(waiting) == (4, "", f"hetctl: group '{name}' was deleted\n")
    with process("wait", name, "--for", "running") as waiting:
        assert waiting.stderr is not None
        assert "waiting for it" in waiting.stderr.readline()
        waiting.send_signal(signal.SIGINT)
        assert ended(waiting) == (130, "", "")


def test_the_dashboard_has_an_address_and_is_opened_where_there_is_a_screen(
    ctl: Callable[..., str], job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("click.launch", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    assert ctl("dashboard") == f"{job.url}/\n"
    assert ctl("dashboard", job.group) == f"{job.url}/groups/{job.group}\n"
    assert "there is no group 'nope'" in ctl("dashboard", "nope", status=1)
    assert opened == [], "its output is no terminal"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for more in ([], ["--no-open"]):
        hetctl.hetctl_group(["dashboard", *more], standalone_mode=False)
        assert opened == [f"{job.url}/"]


def test_logs_come_from_the_agents(job: Job) -> None:
    job.run()
    for node in ("gpu1", LONG):
        job.polls(node, wait_s=0.0)
    with process("logs", job.group, "--rank", "3", "--rank", "9") as running:
        for node, log in (
            ("gpu1", {"rank": 3, "text": "one\n\x1b[31mtwo"}),
            (LONG, {"rank": 9, "why": "no"}),
        ):
            number = job.polls(node, wait_s=20.0)["logs"]["number"]
            answer = {"incarnation": f"{node}-1", "number": number, "stacks": [log]}
            job.ask("POST", f"/nodes/{node}/stacks", answer)
        why = f"hetctl: rank 9 ({LONG}): no\n"
        assert ended(running) == (0, "gpu1:3  one\ngpu1:3  two\n", why)


# -- a process of its own: follow, Ctrl-C, pipes, terminals --------------------------------------------------


@contextmanager
def process(*argv: str, stdout: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "error", "-m", "hetrdzv.cli.hetctl", *argv]
    with subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def ended(running: subprocess.Popen[str]) -> tuple[int, str, str]:
    assert running.stderr is not None
    out = running.stdout.read() if running.stdout is not None else ""
    return (
        running.wait(20),
        out,
        running.stderr.read(),
    )  # communicate() would miss what readline() has read ahead


def test_follow_ends_with_the_group(job: Job) -> None:
    with process("events", job.group, "--follow", "--json") as running:
        assert running.stdout is not None
        assert json.loads(running.stdout.readline())["reason"]["code"] == "group_created"
        job.join("gpu1", 1, "10.0.0.11")
        assert json.loads(running.stdout.readline())["reason"]["nodes"] == ["gpu1"]
        job.ask("POST", "/cancel")
        assert json.loads(running.stdout.readline())["reason"]["code"] == "group_cancelled"
        job.ask("DELETE", "")
        gone = f"hetctl: group '{job.group}' was deleted: its history ends here\n"
        assert ended(running) == (0, "", gone)


def test_follow_outlives_a_restart_of_the_server_and_ends_quietly_on_ctrl_c(tmp_path: Path) -> None:
    with Hetserver(f"sqlite:{tmp_path / 'state.db'}") as server:
        job = Job(server.url, "lasting", min_nodes=2)
        with process("--server", server.url, "events", "lasting", "--follow") as running:
            assert running.stdout is not None
            assert "was created" in running.stdout.readline()
            server.kill()
            server.start()
            job.join("gpu1", 1, "10.0.0.11")
            line = running.stdout.readline()
            assert line.startswith("   2  ")
            assert line.endswith("gpu1 joined with 1 slot at 10.0.0.11\n")
            running.send_signal(signal.SIGINT)
            code, out, err = ended(running)
    assert (code, out) == (0, "")
    assert not err or err.endswith("; trying again\n")  # it may not have asked meanwhile


def test_colours_only_on_a_terminal(job: Job) -> None:
    job.run()
    controller, terminal = pty.openpty()
    try:
        with process("get", job.group, stdout=terminal) as running:
            assert running.wait(20) == 0
        assert b"\x1b[32mrunning" in os.read(controller, 65_536)
    finally:
        os.close(controller)
        os.close(terminal)


# -- errors --------------------------------------------------------------------------------------------------


def test_a_full_disk(job: Job) -> None:
    with open("/dev/full", "w") as full, process("get", job.group, stdout=full.fileno()) as running:
        assert ended(running) == (1, "", "Error: [Errno 28] No space left on device\n")


def test_no_server(ctl: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    said = ctl("--server", "http://127.0.0.1:1,http://127.0.0.1:2", "get", status=1)
    refused = "(http://127.0.0.1:1: connection refused; http://127.0.0.1:2: connection refused)"
    assert said.startswith(f"Error: no server answers {refused}; start hetserver there, or name another")
    monkeypatch.setenv("HET_SERVER", "http://")
    assert "(env var: 'HET_SERVER'): server URL 'http://'" in ctl("get", status=2)


def test_tokens(ctl: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for path, token in ((right, "sesame"), (wrong, "simsalabim")):
        path.write_text(f"{token}\n")
        path.chmod(0o600)
    with Hetserver(token_file=right) as server:
        monkeypatch.setenv("HET_SERVER", server.url)
        assert "set HET_TOKEN or give --token-file" in ctl("get", status=1)
        assert "this server does not accept the token" in ctl("get", "--token-file", str(wrong), status=1)
        ctl("--token-file", str(right), "get")
        monkeypatch.setenv("HET_TOKEN", "sesame")
        ctl("get")


def test_who_is_not_ready_and_what_differs_is_shown(ctl: Callable[..., str], job: Job) -> None:
    for node, version, why in (
        ("gpu1", "2.13.0", ""),
        ("gpu2", "2.12.1", "node check failed: \x1b[31mXid 79"),
    ):
        told = job.join(node, 1, "10.0.0.1", not_ready=why, device={"torch": version})
    assert (told["kind"], told["code"]) == ("wait", "not_ready")
    shown = ctl("get", job.group)
    assert re.search(r"^warning +gpu1 has torch 2\.13\.0, gpu2 has 2\.12\.1$", shown, re.MULTILINE)
    assert rows(shown, "NODE")[1][:2] == ["gpu2", "not_ready"]
    assert rows(shown, "NODE")[1][-1] == "node check failed: Xid 79"
    assert "; gpu2 is not ready: node check failed: Xid 79" in shown


def test_unknown_group_and_node(ctl: Callable[..., str], job: Job) -> None:
    with Hetserver() as empty:
        said = ctl("get", "nope", "--server", empty.url, status=1)
        assert said == "Error: there is no group 'nope'; groups: none yet\n"
        httpx.put(f"{empty.url}/v1/groups/bert", json={}, trust_env=False).raise_for_status()
        of_nodes = [
            ("drain", "nope", "gpu1"),
            ("undrain", "nope", "gpu1"),
            ("drain", "nope", "gpu1", "--dry-run"),
        ]
        of_groups = [
            "get",
            "describe",
            "history",
            "events",
            "logs",
            "stacks",
            "dashboard",
            "restart",
            "cancel",
        ]
        for command in (
            *((name, "nope") for name in (*of_groups, "delete")),
            ("events", "nope", "--follow"),
            *of_nodes,
        ):
            said = ctl(*command, "--server", empty.url, status=1)
            assert said == "Error: there is no group 'nope'; groups: bert\n", command
    assert "has no node 'gpu1'" in ctl("drain", job.group, "gpu1", status=1)
    assert "has no node 'gpu1'" in ctl("undrain", job.group, "gpu1", status=1)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--server", "a b", "get"], "server URL 'a b': 'a b' is not a host name"),
        (["--server", "ftp://x", "get"], "the scheme must be http or https, not 'ftp'"),
        (["get", "--server", ","], "no server was given"),
        (["get", "a/b"], "'a/b' must be 1 to 128 letters"),
        (["create", "g", "--nnodes", "2:x"], "'2:x' must be N or MIN:MAX, for example 2 or 2:4"),
        (["create", "g", "--nnodes", "4:2"], "4:2: MIN must be at least 1, and MAX not below MIN"),
        (["create", "g", "--nnodes", "100001"], "100001 is more than 100000"),
        (
            ["create", "g", "--lease-s", "nan"],
            "'--lease-s': 'nan': Input should be less than or equal to 3600",
        ),
        (
            ["create", "g", "train.py", "--lr", "1"],
            "Usage: hetctl create [OPTIONS] GROUP [-- SCRIPT ARGS...]",
        ),
    ],
)
def test_a_wrong_command_line_is_2(ctl: Callable[..., str], argv: list[str], text: str) -> None:
    assert text in ctl(*argv, status=2)


@pytest.mark.parametrize("command", ["", *hetctl.hetctl_group.commands])
def test_help_fits_a_terminal_of_80_columns(ctl: Callable[..., str], command: str) -> None:
    text = ctl(*command.split(), "--help")
    assert max(map(len, text.splitlines())) <= 80
    assert command or "..." not in text.replace("[ARGS]...", "").replace("URL...", "")
