"""Frameworks around torch, in a virtual environment of their own (`make test-ecosystem`)."""

import os

import pytest

from tests.support.servers import ROOT

VENV = ROOT / ".venv-ecosystem"
PYTHON = VENV / "bin" / "python"

needs_frameworks = pytest.mark.skipif(
    os.environ.get("HET_TEST_ALL") != "1" or not (VENV / ".installed").exists(),
    reason="takes minutes, and needs frameworks in an environment of their own: make test-ecosystem",
)
