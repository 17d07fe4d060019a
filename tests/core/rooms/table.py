"""What optional features add to the machine of test_machine.py."""

from typing import Any

from tests.core.rooms.machine import SharesRules

RULES: tuple[Any, ...] = (SharesRules,)
