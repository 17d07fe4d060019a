"""An agent watches its workers: what the server knows of them, and what it is shown."""

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.agent.rig import Make, Rig, soon

from hetagent.monitor.stacks import MAX_REASON_CHARACTERS
from hetagent.monitor.watcher import (
    MAX_OUTPUT_CHARACTERS,
    MAX_TOTAL_OUTPUT_CHARACTERS,
    NOT_KEPT_REASON,
    NOTHING_WRITTEN_REASON,
    OUTPUT_OFF_REASON,
    log_tail,
    truncate_outputs,
)
from hetagent.node.scratch import make_boot_prefix
from hetagent.runloop.local_round import PREFIX
from hetrdzv.protocol import codec
from hetrdzv.protocol.bounds import MAX_BODY_BYTES
from hetrdzv.protocol.settings import MAX_SLOTS
from hetrdzv.protocol.worker_output import OutputKind, WorkerOutput, WorkerOutputRequest


@pytest.fixture(autouse=True)
def _temporary_files_lie_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


SAYS = "printf $((RANK + 17)) > $HET_PROGRESS_FILE; while [ ! -e go ]; do sleep 0.01; done"
WRITES = f"printf '\\033[31mrank %s\\033[0m says sesame\\n' $RANK >&2; sleep 0.2; echo 'loss 3'; {SAYS}"


def workers(made: Rig) -> list[dict[str, Any]]:
    """What the server knows of the round's workers."""
    found: list[dict[str, Any]] = (made.group().get("current_round") or {}).get("workers", [])
    return found


def steps(made: Rig) -> list[int | None]:
    return [one["step"] for one in workers(made)]


def shown_of(made: Rig, what: str) -> dict[str, Any]:
    """The stacks or logs that the server is shown."""
    reply = httpx.post(f"{made._url}/{what}", trust_env=False, timeout=30)
    found: dict[str, Any] = reply.json()
    return found


def texts_of(made: Rig, which: str = "") -> list[str]:
    return [log["text"] for log in shown_of(made, f"logs{which}").get("workers", ())]


@pytest.mark.parametrize(
    ("shows", "why"), [(True, "does not run torch's server"), (False, OUTPUT_OFF_REASON)]
)
def test_a_program_says_its_step_in_a_file_and_stacks_and_logs_are_shown_or_not(
    rig: Make, tmp_path: Path, shows: bool, why: str
) -> None:
    made = rig(WRITES, slots=2, watches=True, report_output=shows)
    shown: list[dict[str, Any]] = []
    logs: list[dict[str, Any]] = []

    def look() -> None:
        soon(lambda: steps(made) == [17, 18], "steps")
        why = "its collectives are not those of torch.distributed"
        assert {(one["state"], one["unseen"]) for one in workers(made)} == {("unknown", why)}
        shown.extend(shown_of(made, "stacks")["workers"])
        logs.extend(shown_of(made, "logs")["workers"])

    assert made.run(made.exists, look, made.touches("go")) == 0
    said = (
        ["rank 0 says [token]\nloss 3", "rank 1 says [token]\nloss 3"] if shows else [OUTPUT_OFF_REASON] * 2
    )
    assert [one["text"] or one["why"] for one in logs] == said
    assert [one["rank"] for one in shown] == [0, 1]
    assert all(why in one["why"] for one in shown), shown
    assert list(tmp_path.glob(f"{make_boot_prefix(PREFIX)}*")) == []


def test_a_file_system_that_does_not_answer_costs_no_lease(
    rig: Make, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    # pytest's own folder may be too long for a socket's path, and then the agent takes /tmp
    short = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    request.addfinalizer(lambda: shutil.rmtree(short))
    monkeypatch.setattr("tempfile.tempdir", str(short))
    made = rig(SAYS, watches=True, lease_s=3.0)

    def stall() -> None:
        soon(lambda: steps(made) == [17], "a step")
        (folder,) = short.glob(f"{make_boot_prefix(PREFIX)}*")
        os.mkfifo(folder / "pipe")
        silent = os.open(folder / "pipe", os.O_RDWR)  # whoever reads it waits
        os.replace(folder / "pipe", folder / "progress.0")
        time.sleep(7.0)
        (folder / "file").touch()
        os.replace(folder / "file", folder / "progress.0")
        os.close(silent)

    assert made.run(made.exists, stall, made.touches("go")) == 0
    assert "node_lost" not in made.kinds()
    assert made.agent.round_number == 1


def test_the_logs_of_earlier_rounds_are_kept(rig: Make) -> None:
    made = rig(f'echo "round $HET_ROUND" >&2; [ $HET_ROUND -lt 3 ] && exit 7; {SAYS}', watches=True)
    found: list[list[str]] = []

    def look() -> None:
        soon(lambda: steps(made) == [17], "round 3")
        found.extend(texts_of(made, f"?round={number}") for number in (1, 2, 3))
        (made.folder / "go").touch()

    assert made.run(look) == 0
    assert found == [["round 1"], ["round 2"], ["round 3"]]
    for number, which in ((3, ""), (3, "?round=3"), (2, "?round=2"), (1, "?round=1")):
        assert texts_of(made, which) == [f"round {number}"]
        assert shown_of(made, f"logs{which}")["over"]


def test_logs_are_the_end_in_whole_lines_of_both_streams_without_secrets() -> None:
    written = {
        0: None,
        3: (b"", b" \n"),
        4: (b"token sesame\n\x1b[31mred\x1b[0m\n", b""),
        5: (b"loss 3\n", b"warning\n" * MAX_OUTPUT_CHARACTERS),
        6: (b"x" * 2 * MAX_OUTPUT_CHARACTERS, b""),
    }
    found = [log_tail(rank, output, ["sesame"]) for rank, output in written.items()]
    shown = {one.rank: one for one in truncate_outputs(found, OutputKind.LOGS)}
    assert [(shown[rank].text, shown[rank].why) for rank in (0, 3)] == [
        ("", NOT_KEPT_REASON),
        ("", NOTHING_WRITTEN_REASON),
    ]
    assert shown[4].text == "token [token]\nred"
    assert (shown[5].text, set(shown[5].stderr.splitlines())) == ("loss 3", {"warning"})
    assert shown[5].size <= MAX_OUTPUT_CHARACTERS
    assert shown[6].text == "x" * MAX_OUTPUT_CHARACTERS


@pytest.mark.parametrize("about", OutputKind)
def test_the_stacks_and_logs_of_the_largest_node_fit_into_a_request(about: OutputKind) -> None:
    for workers in (1, 64, MAX_SLOTS):
        found = [
            WorkerOutput(rank=rank, text="\U0001f525" * MAX_OUTPUT_CHARACTERS) for rank in range(workers)
        ]
        shown = truncate_outputs(found, about)
        assert len(shown[-1].text) == min(MAX_OUTPUT_CHARACTERS, MAX_TOTAL_OUTPUT_CHARACTERS // workers)
        body = WorkerOutputRequest(incarnation="i" * 128, number=1, stacks=shown)
        assert len(codec.to_json(body, given=True)) < MAX_BODY_BYTES
    codec.validate_value(WorkerOutput, WorkerOutput(rank=0, why="w" * MAX_REASON_CHARACTERS))
