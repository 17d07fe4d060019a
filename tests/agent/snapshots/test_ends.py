"""How a script ends decides whether its last step is saved."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    snaps._ahead.join()
"""


@pytest.mark.parametrize(
    ("end", "notice", "saved"),
    [
        ("", False, False),
        ("sys.exit(0)", True, True),
        ("progress.ready_to_stop(); import os; os._exit(0)", True, True),
        ("progress.ready_to_stop(); import os; os._exit(0)", False, False),
        ("raise ValueError('no')", False, True),
        ("sys.exit(3)", False, True),
    ],
)
def test_the_last_step_is_saved_unless_nobody_goes_on_from_it(
    tmp_path: Path, end: str, notice: bool, saved: bool
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + end)
    if notice:
        (tmp_path / "notice").write_text("{}")
    folder = tmp_path / "snaps"
    told = {"RANK": "0", "HET_SNAPSHOTS": str(folder), "HET_NOTICE_FILE": str(tmp_path / "notice")}
    subprocess.run(
        [sys.executable, "-u", runner.__file__, str(script)],
        env={**os.environ, **told},
        stderr=subprocess.DEVNULL,
        check=False,
    )
    held = {stamp.step for stamp, slot in SnapshotFiles(folder).slots().items() if slot.indexes()}
    assert held == ({5} if saved else set())
