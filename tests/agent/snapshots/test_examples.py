"""The scripts of examples/snapshots that need nothing but torch; the others are in tests/ecosystem."""

from pathlib import Path

import pytest
from tests.support.worlds.examples import check_example


@pytest.mark.long
@pytest.mark.parametrize("script", ["with_ddp.py", "with_fsdp2.py"])
def test_an_example_goes_on_from_its_snapshot_in_another_world(script: str, tmp_path: Path) -> None:
    check_example(tmp_path, script)
