"""How many examples the tests of this directory make: the same few each time, or with `HET_FUZZ=big` many others."""

import os
from typing import Any

from hypothesis import HealthCheck, settings

BIG = os.environ.get("HET_FUZZ") == "big"

COMMON: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


def examples(number: int) -> settings:
    """Settings of a test that makes so many examples, or forty times as many."""
    return settings(max_examples=40 * number if BIG else number, derandomize=not BIG, **COMMON)
