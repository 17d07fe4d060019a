"""Whether there is memory for more standbys."""

import pytest

from hetagent.standby import memory


def test_a_shortage_names_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 2 * memory.NEEDED_BYTES)
    assert memory.shortage(2) is None
    assert memory.shortage(3) == "2.0 GiB of memory are free, 3 GiB are needed"
