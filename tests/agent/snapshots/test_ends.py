"""How a script ends decides whether its last step is saved."""

import subprocess
import sys
from pathlib import Path

from hetagent.snapshots.folder import SnapshotFiles
from hetagent.worker import runner

SCRIPT = """
import sys, torch
from hetagent import progress, snapshots
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
snaps = snapshots.open({"model": model, "optimizer": optimizer})
snaps._schedule.is_due = lambda *_, **__: False
for step in range(1, 6):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    snaps.step(step)
    snaps._slots_thread.join()
"""


RUNS = """
import importlib.util, os, sys
import torch, torch._dynamo, torch.distributed.checkpoint
runner, *folders = sys.argv[1:]
for folder in folders:
    if os.fork() == 0:
        os.environ |= {"RANK": "0", "HET_SNAPSHOTS": f"{folder}/snaps", "HET_NOTICE_FILE": f"{folder}/notice"}
        sys.argv = [runner, f"{folder}/script.py"]
        sys.orig_argv = [sys.executable, *sys.argv]
        sys.path.insert(0, folder)
        spec = importlib.util.spec_from_file_location("__main__", runner)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        sys.exit()
    os.wait()
"""
"""Runs the script in each of some folders, as a worker does, by forks: importing torch takes four seconds of CPU."""

ENDS = [
    ("", False, True),
    ("sys.exit(0)", False, True),
    ("progress.ready_to_stop(); import os; os._exit(0)", True, True),
    ("progress.ready_to_stop(); import os; os._exit(0)", False, False),
    ("raise ValueError('no')", False, True),
    ("sys.exit(3)", False, True),
]
"""Its last line, whether there is a notice, and whether its last step is saved."""


def test_the_last_step_is_saved_unless_the_script_leaves_all_out(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(len(ENDS))]
    for folder, (end, notice, _) in zip(folders, ENDS, strict=True):
        folder.mkdir()
        (folder / "script.py").write_text(SCRIPT + end)
        if notice:
            (folder / "notice").write_text("{}")
    words = [sys.executable, "-c", RUNS, runner.__file__, *map(str, folders)]
    subprocess.run(words, stderr=subprocess.DEVNULL, check=True)
    for folder, (end, notice, saved) in zip(folders, ENDS, strict=True):
        slots = SnapshotFiles(folder / "snaps").find_slots()
        held = {stamp.step for stamp, slot in slots.items() if slot.find_indexes()}
        assert held == ({5} if saved else set()), (end, notice)
