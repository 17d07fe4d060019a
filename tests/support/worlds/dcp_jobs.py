"""What ranks do in the tests of torch.distributed.checkpoint with snapshots, beside `jobs.saves` and `jobs.loads`."""

import json
import os
from pathlib import Path

import torch.distributed.checkpoint as dcp

from hetagent import snapshots
from hetagent.snapshots.folder import FOLDER
from tests.support.worlds.jobs import Job, Trained, loads, saves


def saves_on_nodes(folder: Path) -> None:
    """As `saves` does, where each node has an agent."""
    number = int(os.environ["RANK"]) // int(os.environ["LOCAL_WORLD_SIZE"])
    told = folder / f"node{number}"
    told.mkdir(parents=True, exist_ok=True)
    (told / "control.json").write_text(json.dumps({"round": 4}))
    os.environ[FOLDER] = str(told)
    saves("fsdp", "dcp", folder)


def loads_on_a_node(folder: Path) -> Trained:
    """As `loads` does, from what an agent says."""
    os.environ[FOLDER] = str(folder)
    return loads("fsdp", "dcp", folder)


def saves_twice(folder: Path) -> None:
    """The step before, and the one that the test spoils."""
    job = Job("fsdp")
    for step in (1, 2):
        job.train(step - 1, step)
        dcp.save(job.state(), storage_writer=snapshots.writer(step, directory=folder))


def finds(folder: Path) -> tuple[int | None, int]:
    """Which step is found, and how many were seen in it."""
    reader = snapshots.reader(directory=folder)
    state = Job("fsdp").state()
    dcp.load(state, storage_reader=reader)
    return reader.step, len(state["seen"]["steps"])


def saves_alone(folder: Path) -> None:
    """Each rank saves without the others."""
    dcp.save(Job("ddp").state(), storage_writer=snapshots.writer(1, directory=folder), no_dist=True)
