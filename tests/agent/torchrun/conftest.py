"""Tests of the plug-in start without a token."""

import pytest

from hetagent.torchrun import conf


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HET_TOKEN", raising=False)
    monkeypatch.setattr(conf, "_taken_token", [])
