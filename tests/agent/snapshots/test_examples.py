"""The scripts of examples/snapshots that need nothing but torch; the others are in tests/ecosystem."""

from pathlib import Path

import pytest
from tests.support.worlds.examples import check_example
from tests.support.worlds.jobs import NEEDS_FSDP


@pytest.mark.long
@pytest.mark.parametrize("script", ["with_ddp.py", pytest.param("with_fsdp2.py", marks=NEEDS_FSDP)])
def test_an_example_goes_on_from_its_snapshot_in_another_world(script: str, tmp_path: Path) -> None:
    check_example(tmp_path, script)
