"""The bench that tests of the session begin with."""

import pytest
from tests.agent.session.driver import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()
