"""What scripts leave to the end of their process, tests give back."""

import gc
from collections.abc import Iterator

import pytest

from hetagent import snapshots


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """No snapshots are open, and no files are mapped."""
    yield
    snapshots._opened.clear()
    gc.collect()
