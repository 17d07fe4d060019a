"""Logs lie in a directory per round."""

import dataclasses
import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, Std

from hetagent.node import scratch
from hetagent.workers.logs import PREFIX, RoundLogsSpecs


def envs(ranks: int, round_number: int = 3, restarts: int = 0) -> dict[int, dict[str, str]]:
    env = {
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "HET_ROUND": str(round_number),
    }
    return {rank: dict(env) for rank in range(ranks)}


def torchs(specs: LogsSpecs, ranks: int, log_dir: Path) -> Any:
    """What torch lays out, with its random directory and the number of our round in place of its own."""
    dest = specs.reify(envs(ranks))
    [run] = os.listdir(log_dir)
    text = json.dumps(dataclasses.asdict(dest)).replace(run, "RUN").replace("attempt_0", "attempt_3")
    return json.loads(text.replace(str(log_dir), "LOGS"))


@pytest.mark.parametrize("redirects", [Std.NONE, Std.ALL, {1: Std.OUT}])
@pytest.mark.parametrize("tee", [Std.NONE, Std.ERR, {0: Std.ALL, 1: Std.OUT}])
@pytest.mark.parametrize("ranks_filter", [None, {1}])
def test_all_but_the_directorys_name_is_torchs(
    tmp_path: Path, redirects: Any, tee: Any, ranks_filter: Any
) -> None:
    arguments = {"redirects": redirects, "tee": tee, "local_ranks_filter": ranks_filter}
    theirs = torchs(DefaultLogsSpecs(str(tmp_path / "theirs"), **arguments), 2, tmp_path / "theirs")
    ours = torchs(RoundLogsSpecs(str(tmp_path / "ours"), **arguments), 2, tmp_path / "ours")
    assert ours == theirs


def test_rounds_with_the_same_restart_count_keep_their_logs(tmp_path: Path) -> None:
    specs = RoundLogsSpecs(str(tmp_path), redirects=Std.ALL)
    assert specs.folder == ""
    for number in (1, 2, 5):
        given = envs(2, number)
        dest = specs.reify(given)
        assert given[1]["TORCHELASTIC_ERROR_FILE"] == dest.error_files[1]
        assert given[1]["TORCHELASTIC_RESTART_COUNT"] == "0"
        Path(dest.stderrs[1]).write_text(f"of round {number}")
    [run] = tmp_path.iterdir()
    assert run.name.startswith("job_")
    assert sorted(path.name for path in run.iterdir()) == ["attempt_1", "attempt_2", "attempt_5"]
    assert [(run / f"attempt_{n}" / "1" / "stderr.log").read_text() for n in (1, 2)] == [
        "of round 1",
        "of round 2",
    ]
    assert sorted(os.listdir(run / "attempt_5")) == ["0", "1"]
    specs.reify(envs(1, 5))
    assert os.listdir(run / "attempt_5") == ["0"]
    specs.close()
    assert run.exists()
    assert specs.folder == str(run)


def test_without_a_directory_a_private_one_goes_with_the_agent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    specs = RoundLogsSpecs()
    dest = specs.reify(envs(1))
    [made] = tmp_path.iterdir()
    assert made.name.startswith("hetagent_")
    assert made.stat().st_mode & 0o777 == 0o700
    assert Path(dest.error_files[0]).parent.is_dir()
    assert specs.folder == "", "it goes with the agent"
    specs.close()
    specs.close()
    assert list(tmp_path.iterdir()) == []


def test_the_logs_of_a_killed_agent_go_with_the_next_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    living = RoundLogsSpecs()
    living.reify(envs(1))
    dead = tmp_path / f"{scratch.make_boot_prefix(PREFIX)}dead"  # what is left: a folder without a lock
    (dead / "attempt_1").mkdir(parents=True)
    (tmp_path / "hetagent_notes").mkdir()  # somebody else's
    RoundLogsSpecs(os.devnull)
    assert dead.exists(), "nothing temporary is wanted"
    RoundLogsSpecs().close()
    assert sorted(tmp_path.iterdir()) == sorted([Path(str(living.root_log_dir)), tmp_path / "hetagent_notes"])
    living.close()


def test_where_there_are_no_locks_nothing_is_swept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none(lock: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    folder = scratch.ScratchFolder("x_", tmp_path)
    scratch.remove_stale_folders("x_", tmp_path)
    assert folder.path.exists()
    folder.close()


def test_no_logs_at_all() -> None:
    given = envs(1)
    specs = RoundLogsSpecs(os.devnull)
    dest = specs.reify(given)
    assert specs.folder == ""
    assert dest.error_files == {0: os.devnull}
    assert given[0]["TORCHELASTIC_ERROR_FILE"] == ""
